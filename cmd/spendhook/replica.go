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

// replicaID identifies this process among the replicas on one Redis. It is stored in the data
// directory, so that a restarted daemon has the same id and takes over its former work at
// once.
type replicaID struct {
	id   string
	file *os.File // locked until release; nil when another process has the lock
}

// claimReplicaID returns the id of the data directory, or a new one while another process uses
// the directory's. The kernel drops the lock when the process ends.
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
