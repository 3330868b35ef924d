package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"spendhook/internal/datadir"
	"spendhook/internal/filelock"
)

// replicaID is the identity of this process among those on one Redis. It is
// kept in a file of the data directory, so that a restarted daemon is known
// as the one whose work was in flight and takes it over at once.
type replicaID struct {
	id   string
	file *os.File // locked while we live; nil when another process holds it
}

// claimReplicaID takes the directory's id, or a fresh one while another
// process uses it. The lock ends with the process, however it ends.
func claimReplicaID(dir string) (*replicaID, error) {
	path := filepath.Join(dir, "replica-id")
	f, err := datadir.Open(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	err = filelock.TryExclusive(f)
	if errors.Is(err, filelock.ErrHeld) {
		f.Close()
		return &replicaID{id: uuid.NewString()}, nil
	}
	var id string
	if err == nil {
		id, err = readOrWriteID(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &replicaID{id: id, file: f}, nil
}

// readOrWriteID reads the id in f; anything that is not one is replaced, since
// a fresh id only costs a slower takeover.
func readOrWriteID(f *os.File) (string, error) {
	text, err := io.ReadAll(io.LimitReader(f, 100))
	if err != nil {
		return "", err
	}
	if id, err := uuid.Parse(strings.TrimSpace(string(text))); err == nil {
		return id.String(), nil
	}
	id := uuid.NewString()
	if err := f.Truncate(0); err != nil {
		return "", err
	}
	if _, err := f.WriteAt([]byte(id+"\n"), 0); err != nil {
		return "", err
	}
	return id, f.Sync()
}

// release lets another process use the id.
func (r *replicaID) release() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
