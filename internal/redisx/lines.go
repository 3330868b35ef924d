package redisx

import (
	"bytes"
	"log/slog"
	"sync"
)

// lines logs what the embedded server prints and keeps its last words, for the
// error when it does not start.
type lines struct {
	log *slog.Logger

	mu   sync.Mutex
	rest []byte
	tail string
}

const maxLine = 4096

// Write never fails; a line is logged once it is complete.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		l.rest = rest
		l.take(line)
	}
	if len(l.rest) > maxLine {
		l.rest = nil
	}
	return len(p), nil
}

func (l *lines) take(line []byte) {
	if text := string(bytes.TrimSpace(line)); text != "" {
		l.tail = text
		l.log.Debug("embedded Redis says", "line", text)
	}
}

func (l *lines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail
}
