package main

// keepFilesPrivate has nothing to do: the access list of the data directory decides.
func keepFilesPrivate() {}
