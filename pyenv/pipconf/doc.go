// Package pipconf reads the pip configuration of whoever calls it: where packages come
// from, with the credentials for that.
//
// It is apart from package resolve, which runs pip by it, because it is the front of a
// session that reads it: a small process, in which neither a resolver nor what that needs
// is to be initialized before its client has an answer. So this package imports little
// and has next to no work at its start.
//
// What it reads goes to the server and is kept nowhere else. No error and no warning
// holds a value, and [Settings] prints none.
package pipconf
