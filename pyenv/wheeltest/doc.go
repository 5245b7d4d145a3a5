// Package wheeltest builds wheels for tests, good ones and every kind of bad one.
//
// [Wheel] is a wheel as a build tool would write it: the zero value is a valid
// "demo" 1.0, and fields change one thing each. [Archive] is the zip file below
// it, of which a test may bend every header: a wheel's Zip function gets it just
// before it is written. Times are fixed and nothing is random, so that the same
// description is the same bytes.
//
// It is for tests only. No other code imports it.
package wheeltest
