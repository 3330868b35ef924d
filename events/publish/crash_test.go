package publish_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

// breakable is a bundle on a server that its test may break.
func breakable(t *testing.T, o redistest.Options) (*redistest.Server, *bundle) {
	t.Helper()
	server := redistest.Start(t, o)
	t.Cleanup(func() { waitForDialers(t) }) // once the client is closed
	return server, setupOn(t, server.Client(), func(*options) {})
}

// waitForDialers waits for the goroutines of go-redis that dial a lost server every second.
// They end after their client.
func waitForDialers(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	waittest.Until(t, "go-redis dials no more", func() bool {
		return !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("pool.(*ConnPool).tryDial"))
	})
}

// The server is killed under load. Invariant 1: each event that was answered ACCEPTED is still
// stored, with its place in the log. Invariant 2: when all events are sent again, no
// event is accepted twice and none is lost.
func TestAcceptedSurvivesAKilledServer(t *testing.T) {
	t.Parallel()
	server, b := breakable(t, redistest.Options{AOF: true})
	sent, accepted := b.acceptUntilKilled(t, server, 2000)
	server.Restart()
	b.waitForRedis(t)

	pending := sorted(b.log(t, company))
	b.mustBeWhole(t, pending)
	for _, id := range accepted {
		if _, err := b.Reader.Get(t.Context(), events.Ref{Company: company, ID: id}); err != nil {
			t.Errorf("%s was accepted and is gone: %v", id, err)
		}
		if _, ok := slices.BinarySearch(pending, id); !ok {
			t.Errorf("%s was accepted and its place in the log is gone", id)
		}
	}
	for _, id := range sent {
		said := b.Accept(t, newEvent(id))[0]
		if said != "DUPLICATE" && slices.Contains(accepted, id) {
			t.Errorf("%s was accepted, then sent again it is %s", id, said)
		}
	}
	if got := b.log(t, company); len(got) != len(sent) {
		t.Errorf("%d pending after sending all %d again", len(got), len(sent))
	} else {
		b.mustBeWhole(t, got)
	}
}

// mustBeWhole checks that the log, the stored events, the index and the counters agree.
func (b *bundle) mustBeWhole(t *testing.T, pending []string) {
	t.Helper()
	var stored []string
	for _, key := range b.keys(t) {
		if id, ok := strings.CutPrefix(key, layout.EventKey(events.Ref{Company: company})); ok {
			stored = append(stored, id)
		}
	}
	if !slices.Equal(sorted(slices.Clone(pending)), sorted(stored)) {
		t.Errorf("%d in the log, %d events", len(pending), len(stored))
	}
	ofCompany, ofPartition := b.pending(t, company)
	indexed := b.Redis.ZCard(t.Context(), layout.IndexKey(company)).Val()
	if n := len(pending); ofCompany != n || ofPartition != n || int(indexed) != n {
		t.Errorf("%d in the log, but %d and %d are counted as pending and %d are in the index", n, ofCompany, ofPartition, indexed)
	}
}

// acceptUntilKilled kills the server once `after` events were accepted and
// returns every id that was sent and those that were answered ACCEPTED.
func (b *bundle) acceptUntilKilled(t *testing.T, server *redistest.Server, after int) (sent, accepted []string) {
	t.Helper()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		once sync.Once
	)
	for caller := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("c%d-%d", caller, i)
				results, err := b.Publisher.Accept(t.Context(), []events.Event{newEvent(id)})
				mu.Lock()
				sent = append(sent, id)
				if err == nil && results[0].Status == publish.Accepted {
					accepted = append(accepted, id)
				}
				enough := len(accepted) >= after
				mu.Unlock()
				if err != nil {
					if !errors.Is(err, events.ErrUnavailable) {
						t.Errorf("accept without a server: %v, want ErrUnavailable", err)
					}
					return
				}
				if enough {
					once.Do(func() { wg.Go(server.Kill) })
				}
			}
		})
	}
	wg.Wait()
	return sent, accepted
}

func TestUnavailableRedisAndBack(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct{ begin, end func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"paused": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, b := breakable(t, redistest.Options{AOF: true})
			want(t, "before", b.Accept(t, newEvent("e1")), "ACCEPTED")
			outage.begin(server)
			b.mustBeUnavailable(t, newEvent("e2"))
			outage.end(server)
			b.acceptAgain(t, newEvent("e2"))
			want(t, "after", b.Accept(t, newEvent("e1"), newEvent("e2"), newEvent("e3")), "DUPLICATE", "DUPLICATE", "ACCEPTED")
		})
	}
}

// mustBeUnavailable lets many callers try at once, and checks that all fail in time.
func (b *bundle) mustBeUnavailable(t *testing.T, e events.Event) {
	t.Helper()
	const limit = 300 * time.Millisecond
	var wg sync.WaitGroup
	took := make([]time.Duration, 200)
	for i := range took {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			results, err := b.Publisher.Accept(ctx, []events.Event{e})
			if !errors.Is(err, events.ErrUnavailable) || results != nil {
				t.Errorf("accept during the outage: %v, %v, want ErrUnavailable", results, err)
			}
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	slices.Sort(took)
	if half := took[len(took)/2]; half > limit+time.Second || took[len(took)-1] > 20*time.Second { // a busy machine may delay some calls
		t.Errorf("accept during the outage took %v, and up to %v", half, took[len(took)-1])
	}
}

// acceptAgain sends e until it is accepted or a duplicate, as a source does.
func (b *bundle) acceptAgain(t *testing.T, e events.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		_, err := b.Publisher.Accept(ctx, []events.Event{e})
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the publisher did not recover: %v", err)
		}
	}
}

// waitForRedis waits until the client has noticed that its server is back.
func (b *bundle) waitForRedis(t *testing.T) {
	t.Helper()
	waittest.Until(t, "the client finds its server", func() bool { return b.Redis.Ping(t.Context()).Err() == nil })
}

// An event whose commit lost its reply is committed again and still ACCEPTED,
// not taken for a duplicate of itself.
func TestALostReplyIsNotADuplicate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	lossy := &lossyNetwork{socket: server.Socket()}
	client := redis.NewClient(&redis.Options{Dialer: lossy.dial, MaxRetries: 3})
	defer client.Close()
	b := setupOn(t, client, func(*options) {})
	defer b.Publisher.Close()
	want(t, "before", b.Accept(t, newEvent("e0")), "ACCEPTED")
	lossy.lose.Store(true)
	want(t, "answer", b.Accept(t, newEvent("e1"), newEvent("e1"), newEvent("e0")), "ACCEPTED", "DUPLICATE", "DUPLICATE")
	if lossy.lose.Load() {
		t.Error("no reply was lost")
	}
	want(t, "log", b.log(t, company), "e0", "e1")
}

// lossyNetwork drops a connection in place of its next reply once lose is set.
type lossyNetwork struct {
	socket string
	lose   atomic.Bool
}

func (n *lossyNetwork) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", n.socket)
	return lossyConn{conn, n}, err
}

type lossyConn struct {
	net.Conn
	network *lossyNetwork
}

func (c lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p) // so the server has done it
	if err == nil && c.network.lose.CompareAndSwap(true, false) {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// Accept returns when its context ends. Sending the events again is safe.
func TestAcceptObeysItsContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("client went away")
	cancel(gone)
	for i := range 50 {
		_, err := b.Publisher.Accept(ctx, []events.Event{newEvent(strconv.Itoa(i))})
		if err != nil && (!errors.Is(err, events.ErrUnavailable) || !errors.Is(err, gone)) {
			t.Fatalf("accept: %v, want ErrUnavailable with the cause", err)
		}
	}
}

// When Redis refuses part of a commit, the id must stay unknown. Otherwise an event that was
// never accepted would count as a duplicate.
func TestAHalfRefusedCommitCanBeSentAgain(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		layout.IndexKey(company), partition.Key(company, "companies"), StateKey(company),
		partition.Key(company, "pending"), partition.Key(company, "active"), partition.Key(company, "told"),
	} {
		b := setup(t)
		b.damage(t, key)
		if _, err := b.Publisher.Accept(t.Context(), []events.Event{newEvent("e1")}); !errors.Is(err, events.ErrUnavailable) {
			t.Fatalf("accept with %s damaged: %v, want ErrUnavailable", key, err)
		}
		b.Redis.Del(t.Context(), key)
		want(t, "again", b.Accept(t, newEvent("e1")), "ACCEPTED")
		if got := b.log(t, company); !slices.Contains(got, "e1") {
			t.Errorf("with %s mended: log %q", key, got)
		}
	}
}

// damage gives a key a value that no script expects.
func (b *bundle) damage(t *testing.T, key string) {
	t.Helper()
	if err := b.Redis.Set(t.Context(), key, "neither a number nor a collection", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// At the memory limit of Redis no event is accepted, and no key changes.
func TestFullRedisAcceptsNothing(t *testing.T) {
	t.Parallel()
	_, b := breakable(t, redistest.Options{})
	want(t, "before", b.Accept(t, newEvent("e1")), "ACCEPTED")
	before := b.dump(t)
	b.Redis.ConfigSet(t.Context(), "maxmemory", "1")
	want(t, "by a full Redis", b.Accept(t, newEvent("e2"), newEvent("e1"), newEvent("e3")), "STORAGE_FULL", "DUPLICATE", "STORAGE_FULL")
	if after := b.dump(t); after != before {
		t.Errorf("a full Redis changed from\n%s\nto\n%s", before, after)
	}
	b.Redis.ConfigSet(t.Context(), "maxmemory", "0")
	want(t, "after", b.Accept(t, newEvent("e2")), "ACCEPTED")
	want(t, "log", b.log(t, company), "e1", "e2")
}
