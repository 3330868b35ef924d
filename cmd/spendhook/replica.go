package main

import (
	"errors"
	"io"
	"path/filepath"

	"github.com/google/uuid"

	"spendhook/internal/datadir"
)

// claimReplicaID returns the id that identifies this process among the replicas on one Redis. The
// data directory keeps the id, so that a restarted daemon has the same id and requeues its former
// work at once. While another process uses the stored id, the function returns a new id and a lock
// that locks nothing. Closing lock frees the id; the kernel does so when this process ends. An id
// that cannot be read is replaced, which only makes the takeover slower.
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
