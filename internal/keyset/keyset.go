// Package keyset reads the keys that a daemon publishes, for receivers of signed messages.
package keyset

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spendhook/internal/httpsig"
)

const (
	// minLife and maxLife bound how long the keys are used without reading them again. Within them, Cache-Control of the
	// answer decides. Spendhook says five minutes.
	minLife = 5 * time.Minute
	maxLife = 24 * time.Hour
	// pause is the least time between two reads, after an unknown key or a failure: anybody can send unknown keys.
	pause = 5 * time.Second
	// timeout bounds a read.
	timeout = 5 * time.Second
	// maxSize bounds the answer, in bytes.
	maxSize = 1 << 16
)

// Set keeps the keys of one address. The zero value has read nothing yet. It is safe for concurrent use: one caller
// reads, and the others wait, except those that need only known keys.
type Set struct {
	current atomic.Pointer[current] // replaced with mu held; read without it: unknown keys must not delay messages by known ones

	mu      sync.Mutex
	triedAt time.Time // when keys were last to be read
	failed  error     // why that failed
}

// Source says where the keys are read.
type Source struct {
	URL    string
	Client *http.Client // nil: http.DefaultClient. Its redirects are not followed.
	Now    time.Time
}

// current are keys that were read.
type current struct {
	keys   []httpsig.JWK
	life   time.Duration
	readAt time.Time
}

// Known returns the keys. It reads them if they are too old.
func (s *Set) Known(ctx context.Context, from Source) ([]httpsig.JWK, error) {
	if c := s.current.Load(); c.isYounger(from.Now, maxLife) {
		return c.keys, nil
	}
	return s.read(ctx, from, maxLife)
}

// Again returns the keys after a signature by an unknown one. It reads them unless that was tried within the last
// five seconds.
func (s *Set) Again(ctx context.Context, from Source) ([]httpsig.JWK, error) {
	return s.read(ctx, from, pause)
}

// isYounger reports whether there are keys that may still be used, and were read less than a time ago. Keys that were read
// in the future are not: the clock was set back. A little later than now is the read for which a caller waited.
func (c *current) isYounger(now time.Time, age time.Duration) bool {
	if c == nil {
		return false
	}
	since := now.Sub(c.readAt)
	return since > -pause && since < min(age, c.life)
}

// read returns the keys, which it reads unless they are younger than age.
func (s *Set) read(ctx context.Context, from Source, age time.Duration) ([]httpsig.JWK, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.current.Load(); c.isYounger(from.Now, age) { // read by another caller
		return c.keys, nil
	}
	if s.failed != nil && from.Now.Sub(s.triedAt).Abs() < pause {
		return nil, s.failed
	}
	keys, life, err := from.read(ctx)
	s.triedAt, s.failed = from.Now, err
	if err != nil {
		return nil, err
	}
	s.current.Store(&current{keys, life, from.Now})
	return keys, nil
}

func (from *Source) read(ctx context.Context) ([]httpsig.JWK, time.Duration, error) {
	// The keys are for all messages: that of this one may have been given up by its sender.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.URL, nil)
	if err != nil {
		return nil, 0, err
	}
	client := http.Client{}
	if from.Client != nil {
		client = *from.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("read the published keys: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("read the published keys: %s", resp.Status)
	}
	set := struct {
		Keys []httpsig.JWK `json:"keys"`
	}{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSize)).Decode(&set); err != nil {
		return nil, 0, fmt.Errorf("read the published keys: %w", err)
	}
	if set.Keys == nil {
		set.Keys = []httpsig.JWK{}
	}
	return set.Keys, life(resp.Header.Get("Cache-Control")), nil
}

// life is how long the keys may be used.
func life(cacheControl string) time.Duration {
	for directive := range strings.SplitSeq(cacheControl, ",") {
		text, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(directive)), "max-age=")
		if seconds, err := strconv.ParseInt(text, 10, 32); ok && err == nil {
			return min(max(time.Duration(seconds)*time.Second, minLife), maxLife)
		}
	}
	return minLife
}
