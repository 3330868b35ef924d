package inbox

import (
	"context"
	"slices"
	"sync"
)

// MemoryStore is a Store for tests: it forgets everything with the process. Work gets the zero value of T. The
// zero MemoryStore is ready to use. One transaction runs at a time.
type MemoryStore[T any] struct {
	mu     sync.Mutex
	ids    map[string]bool
	cursor string
}

// Transaction implements Store.
func (s *MemoryStore[T]) Transaction(_ context.Context, do func(tx Transaction, work T) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &memoryTransaction{ids: s.ids, cursor: s.cursor}
	var none T
	if err := do(tx, none); err != nil {
		return err
	}
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	for _, id := range tx.added {
		s.ids[id] = true
	}
	s.cursor = tx.cursor
	return nil
}

// memoryTransaction collects the changes.
type memoryTransaction struct {
	ids    map[string]bool // before it
	added  []string
	cursor string
}

func (tx *memoryTransaction) Add(_ context.Context, id string, _ int64) (bool, error) {
	if tx.ids[id] || slices.Contains(tx.added, id) {
		return false, nil
	}
	tx.added = append(tx.added, id)
	return true, nil
}

func (tx *memoryTransaction) Cursor(context.Context) (string, error) { return tx.cursor, nil }

func (tx *memoryTransaction) SetCursor(_ context.Context, cursor string) error {
	tx.cursor = cursor
	return nil
}
