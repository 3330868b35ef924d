//go:build faults

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// feedReader reads a feed from any daemon that answers, each page from the next of the page
// before.
type feedReader struct {
	tb         testing.TB
	subscriber uuid.UUID
	daemons    func(i int) *running

	next      int64
	requests  int
	forgotten int64
	ids       []string
}

// read reads one page; it reports false when the daemon did not answer.
func (f *feedReader) read(ctx context.Context, wait string) (page gen.Feed, ok bool) {
	f.requests++
	d := f.daemons(f.requests)
	path := fmt.Sprintf("%s/api/v1/subscribers/%s/feed?after=%d&limit=%d&wait=%s", d.api, f.subscriber, f.next, 1+rand.IntN(60), wait)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	req.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return page, false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusServiceUnavailable {
		return page, false
	}
	if err := json.Unmarshal(body, &page); err != nil || resp.StatusCode != http.StatusOK {
		f.tb.Errorf("feed: %d %s", resp.StatusCode, body)
		return page, false
	}
	for _, e := range page.Content {
		if e.Sequence <= f.next || e.Sequence > page.Next {
			f.tb.Errorf("number %d is on the page from %d to %d", e.Sequence, f.next, page.Next)
		}
		f.ids = append(f.ids, e.ID)
	}
	f.next, f.forgotten = page.Next, f.forgotten+page.Forgotten
	return page, true
}

// run reads pages until ctx ends, and then the remaining pages.
func (f *feedReader) run(ctx context.Context) {
	for ctx.Err() == nil {
		if _, ok := f.read(ctx, "2s"); !ok {
			pause.For(ctx, 20*time.Millisecond)
		}
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if page, ok := f.read(context.WithoutCancel(ctx), "0s"); ok && !page.More {
			return
		}
	}
	f.tb.Error("the feed has no end")
}

// Emitters send to two replicas that are killed one after the other, again and again.
// Readers that always go on from next find exactly the accepted events that match.
func TestFeedUnderKills(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	installations := []installation{
		newInstallation(t, server.URL(), briefRetries+sharedKey), newInstallation(t, server.URL(), briefRetries+sharedKey),
	}
	tr := newTrial(t, server.Client(), installations...)
	const filtered = `{"name":"filtered","callbackUrl":"http://127.0.0.1:9/","events":["PAYMENT_PAID"],"enabled":false,` +
		`"filter":"id.endsWith(\"0\") || id.endsWith(\"7\")"}`
	status, _, answer := tr.daemons[0].do(t, http.MethodPost, "/api/v1/subscribers", filtered)
	var picky gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(answer), &picky); err != nil || status != http.StatusCreated {
		t.Fatalf("subscribe: %d %s", status, answer)
	}

	var live [2]atomic.Pointer[running]
	for i, d := range tr.daemons {
		live[i].Store(d)
	}
	daemons := func(i int) *running { return live[i%2].Load() }
	readers := []*feedReader{
		{tb: t, subscriber: tr.endpoints[0].subscriber, daemons: daemons}, {tb: t, subscriber: picky.UUID, daemons: daemons},
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var reading sync.WaitGroup
	for _, r := range readers {
		reading.Go(func() { r.run(ctx) })
	}
	for n := range kills {
		tr.grow(rand.IntN(100))
		pause.For(t.Context(), rand.N(200*time.Millisecond))
		tr.daemons[n%2].signal(syscall.SIGKILL)
		tr.daemons[n%2].ended(t)
		tr.replace(n%2, installations[n%2].startChild(t))
		live[n%2].Store(tr.daemons[n%2])
	}
	tr.grow(100)
	tr.load.stop()
	stop()
	reading.Wait()

	matching := map[bool][]string{}
	for id := range tr.load.ids() {
		matching[true] = append(matching[true], id)
		if strings.HasSuffix(id, "0") || strings.HasSuffix(id, "7") {
			matching[false] = append(matching[false], id)
		}
	}
	for i, r := range readers {
		got, want := slices.Sorted(slices.Values(r.ids)), slices.Sorted(slices.Values(matching[i == 0]))
		t.Logf("%d kills: a feed of %d events in %d requests, %d accepted match, %d forgotten", kills, len(got), r.requests, len(want), r.forgotten)
		if !slices.Equal(got, want) || r.forgotten != 0 {
			t.Errorf("the feed has not exactly the accepted events that match")
		}
	}
	tr.account()
	for _, d := range tr.daemons {
		d.stop(t)
	}
}
