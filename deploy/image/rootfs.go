package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user id of the entry point, which is usual for images without root.
const user = 65532

// entry is a file or directory of the root file system.
type entry struct {
	path    string // without a leading slash
	mode    fs.FileMode
	owner   int
	content []byte
}

// imageFiles returns all files and directories of the image, parents first.
func imageFiles(binary, license, sbom []byte) ([]entry, error) {
	entries := []entry{
		{path: "data", mode: fs.ModeDir | 0o700, owner: user},
		{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{path: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nspendhook:x:%[1]d:%[1]d::/data:/sbin/nologin\n", user)},
		{path: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nspendhook:x:%d:\n", user)},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()},
		{path: "usr/bin/spendhook", mode: 0o755, content: binary},
		{path: "usr/share/doc/spendhook/LICENSE", mode: 0o644, content: license},
		{path: "usr/share/doc/spendhook/sbom.cdx.json", mode: 0o644, content: sbom},
	}
	zones, err := timeZones()
	if err != nil {
		return nil, fmt.Errorf("time zones: %w", err)
	}
	entries = append(entries, zones...)
	return withParents(entries), nil
}

// authorities returns Mozilla's CA certificates as PEM. It omits a CA that is trusted only for
// certificates issued before some day, because PEM cannot express that.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a write to a buffer does not fail
		}
	}
	return text.Bytes()
}

// timeZones returns the time zones that come with Go.
func timeZones() ([]entry, error) {
	archive, err := zip.OpenReader(zonesFile())
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	var entries []entry
	for _, f := range archive.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		content, err := fs.ReadFile(archive, f.Name)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{path: "usr/share/zoneinfo/" + f.Name, mode: 0o644, content: content})
	}
	return entries, nil
}

func zonesFile() string {
	return filepath.Join(runtime.GOROOT(), "lib", "time", "zoneinfo.zip") //nolint:staticcheck // the program runs where go run built it
}

// withParents adds the missing parent directories, and sorts all entries by path.
func withParents(entries []entry) []entry {
	there := map[string]bool{".": true}
	for _, e := range entries {
		there[e.path] = true
	}
	for _, e := range slices.Clone(entries) {
		for dir := path.Dir(e.path); !there[dir]; dir = path.Dir(dir) {
			there[dir] = true
			entries = append(entries, entry{path: dir, mode: fs.ModeDir | 0o755})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	return entries
}

// writeTar writes the entries as the layer of an image.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: e.path, Size: int64(len(e.content)), Mode: int64(e.mode.Perm()),
			Uid: e.owner, Gid: e.owner, ModTime: at, Format: tar.FormatPAX,
		}
		if e.mode.IsDir() {
			header.Typeflag, header.Name = tar.TypeDir, e.path+"/"
		}
		if e.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeDir writes the entries below dir. It sets owners only when it runs as root.
func writeDir(dir string, entries []entry) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, filepath.FromSlash(e.path))
		var err error
		if e.mode.IsDir() {
			err = os.MkdirAll(name, 0o755)
		} else {
			err = os.WriteFile(name, e.content, e.mode.Perm())
		}
		if err != nil {
			return err
		}
		if os.Geteuid() == 0 {
			err = os.Lchown(name, e.owner, e.owner)
		}
		if err := errors.Join(err, os.Chmod(name, e.mode)); err != nil {
			return err
		}
	}
	return nil
}
