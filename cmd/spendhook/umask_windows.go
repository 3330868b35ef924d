package main

// keepFilesPrivate does nothing: on Windows the access list of the data directory protects its files.
func keepFilesPrivate() {}
