// Package hostbox keeps the two folders of the person that may be joined to a session:
// the outbox (Mirror), which is as a folder of the disk is, and the inbox (Watch), whose
// files go into the disk. It runs in the front, with the rights of whoever called.
//
// Nothing that the person made or changed in the outbox is replaced or removed, nothing
// at all in the inbox, and no link in either is followed. What has to be known for that
// is in a manifest in the outbox; it and every file there appear whole, so that a killed
// process leaves what the next one goes on with.
package hostbox
