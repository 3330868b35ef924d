package main

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/internal/waittest"
)

// lockedBuffer collects what several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// firstLine is a buffer whose first line can be waited for.
type firstLine struct {
	lockedBuffer
	once sync.Once
	have chan struct{}
}

func newFirstLine() *firstLine { return &firstLine{have: make(chan struct{})} }

func (f *firstLine) Write(p []byte) (int, error) {
	n, err := f.lockedBuffer.Write(p)
	if bytes.ContainsRune(p, '\n') {
		f.close()
	}
	return n, err
}

func (f *firstLine) close() { f.once.Do(func() { close(f.have) }) }

func (f *firstLine) wait(tb testing.TB) string {
	tb.Helper()
	select {
	case <-f.have:
	case <-time.After(patience):
		tb.Fatal("no line was written")
	}
	line, _, _ := strings.Cut(f.String(), "\n")
	return line
}

// wantInTime checks that answers came within the two seconds that the daemon has for
// them. A machine that does other things may add as much to most, and more to any one.
func wantInTime(tb testing.TB, took []time.Duration) {
	tb.Helper()
	slices.Sort(took)
	if took[len(took)/2] > 4*time.Second || took[len(took)-1] > 20*time.Second {
		tb.Errorf("answered after %v, want 2 s", took)
	}
}

// eventually is waittest.Within.
func eventually(tb testing.TB, within time.Duration, what string, ok func() bool) {
	tb.Helper()
	waittest.Within(tb, within, what, ok)
}
