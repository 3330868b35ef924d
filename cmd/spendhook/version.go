package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/go-json-experiment/json"
)

// Set at link time from the output of scripts/version, for builds without access to the repository.
var version, revision, date string

// buildInfo identifies the build.
type buildInfo struct {
	Version   string `json:"version"`  // semantic: of the tag, or a pseudo-version
	Revision  string `json:"revision"` // the commit
	Date      string `json:"date"`     // of the commit, RFC 3339
	GoVersion string `json:"goVersion"`
}

func readBuild() buildInfo {
	b := buildInfo{Version: version, Revision: revision, Date: date}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		b.GoVersion = info.GoVersion
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = cmp.Or(b.Revision, s.Value)
			case "vcs.time":
				b.Date = cmp.Or(b.Date, s.Value)
			}
		}
	}
	const unknown = "unknown"
	b.Version, b.Revision, b.Date = cmp.Or(b.Version, "(devel)"), cmp.Or(b.Revision, unknown), cmp.Or(b.Date, unknown)
	return b
}

// String is one line.
func (b buildInfo) String() string {
	return fmt.Sprintf("spendhook %s (revision %s of %s, %s)", b.Version, b.Revision, b.Date, b.GoVersion)
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print a JSON object."`
}

// Run prints the version, the revision with its date, and the Go release.
func (c *versionCmd) Run(term *stdio) error {
	if c.JSON {
		return writeLine(term.Out, readBuild())
	}
	_, err := fmt.Fprintln(term.Out, readBuild())
	return err
}

// writeLine writes v as one line of JSON.
func writeLine(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}
