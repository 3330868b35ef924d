package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
// the directory's. The kernel drops the lock when the process ends. An id that cannot be read is
// replaced: a new one only makes the takeover slower.
func claimReplicaID(dir string) (*replicaID, error) {
	path := filepath.Join(dir, "replica-id")
	f, err := datadir.Open(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := filelock.TryExclusive(f); errors.Is(err, filelock.ErrHeld) {
		f.Close()
		return &replicaID{id: uuid.NewString()}, nil
	} else if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text := make([]byte, len(uuid.Nil.String()))
	_, _ = f.ReadAt(text, 0)
	id, err := uuid.ParseBytes(text)
	if err != nil {
		id = uuid.New()
		if _, err := f.WriteAt([]byte(id.String()), 0); err != nil {
			f.Close()
			return nil, err
		}
	}
	return &replicaID{id: id.String(), file: f}, nil
}

// release lets another process use the id.
func (r *replicaID) release() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
