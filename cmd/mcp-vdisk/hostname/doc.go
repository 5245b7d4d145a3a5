// Package hostname gives the names of a disk a form that the file system of a computer
// can hold. A disk has any bytes in its names, 255 of them, and takes README and readme
// for two; vfat, NTFS and APFS do not.
//
// What can be held stays as it is. The rest is escaped, so that no two names become one,
// and nothing is left out for its name: Escape is for one component, Rules say what a
// file system cannot hold, RulesIn finds that out by trying.
package hostname
