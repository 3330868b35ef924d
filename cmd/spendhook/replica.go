package main

import (
	"errors"
	"io"
	"path/filepath"

	"github.com/google/uuid"

	"spendhook/internal/datadir"
)

// claimReplicaID returns the id that identifies this process among the replicas on one Redis. It is
// kept in the data directory, so that a restarted daemon has the same id and takes over its former
// work at once. While another process uses the directory's id, the id is a new one, and lock
// locks nothing. Closing lock lets another process use the id; the kernel closes it when this process
// ends. An id that cannot be read is replaced: a new one only makes the takeover slower.
func claimReplicaID(dir string) (id string, lock io.Closer, err error) {
	path := filepath.Join(dir, "replica-id")
	f, err := datadir.TryLock(path)
	switch {
	case errors.Is(err, datadir.ErrLocked):
		return uuid.NewString(), io.NopCloser(nil), nil
	case err != nil:
		return "", nil, err
	}
	text := make([]byte, len(uuid.Nil.String()))
	_, _ = f.ReadAt(text, 0)
	if _, err := uuid.ParseBytes(text); err == nil {
		return string(text), f, nil
	}
	id = uuid.NewString()
	if _, err := f.WriteAt([]byte(id), 0); err != nil {
		f.Close()
		return "", nil, err
	}
	return id, f, nil
}
