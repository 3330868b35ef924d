package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// version is set at link time: -ldflags "-X main.version=v1.2.3".
var version string

// buildInfo says which build this is.
type buildInfo struct {
	version, revision, goVersion string
}

func readBuild() buildInfo {
	b := buildInfo{version: version, revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.version = cmp.Or(b.version, "(devel)")
		return b
	}
	b.version = cmp.Or(b.version, info.Main.Version, "(devel)")
	b.goVersion = info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.revision = s.Value
		}
	}
	return b
}

// String is one line.
func (b buildInfo) String() string {
	return fmt.Sprintf("spendhook %s (revision %s, %s)", b.version, b.revision, b.goVersion)
}

type versionCmd struct{}

// Run prints the version, the revision it was built from and the Go release.
func (versionCmd) Run(term *console) error {
	_, err := fmt.Fprintln(term.out, readBuild())
	return err
}
