package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"spendhook/api/client"
)

// All streams of a source wait as long as the daemon asks, and then one request finds out whether it accepts again.
func TestTheSourceWaitsAsLongAsTheDaemonAsks(t *testing.T) {
	t.Parallel()
	const streams, each = 16, 2 * maxSent
	for name, refusal := range map[string]*client.Error{
		"full":         {Status: http.StatusServiceUnavailable, Code: "STORAGE_FULL", RetryAfter: 30 * time.Second, Results: make([]client.EventItemResult, maxSent)},
		"rate limited": {Status: http.StatusTooManyRequests, Code: "RATE_LIMITED", RetryAfter: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var got []time.Duration // guarded by the daemon
				d := &daemon{fail: func([]string, int) error {
					got = append(got, time.Since(begun))
					if time.Since(begun) < 70*time.Second {
						return refusal
					}
					return nil
				}}
				runAll(t, d, streams, 80*time.Second, func(stream int) (list []*Record) {
					for i := range each {
						list = append(list, &Record{Value: fmt.Append(nil, stream, "-", i)})
					}
					return list
				})
				want := slices.Repeat([]time.Duration{latency}, streams)
				want = append(want, 30*time.Second+2*latency, 60*time.Second+3*latency)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("times of the requests: %s", diff)
				}
			})
		})
	}
}

// The streams send as soon as a probe is accepted.
func TestTheSourceGoesOnAfterAProbe(t *testing.T) {
	t.Parallel()
	const streams, each = 16, 10
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		d := &daemon{fail: func([]string, int) error {
			if time.Since(begun) == latency {
				return &client.Error{Status: http.StatusServiceUnavailable, RetryAfter: 30 * time.Second}
			}
			return nil
		}}
		runAll(t, d, streams, 30*time.Second+3*latency, func(stream int) (list []*Record) {
			for i := range each {
				list = append(list, &Record{Value: fmt.Append(nil, stream, "-", i)})
			}
			return list
		})
		if len(d.accepted) != streams*each {
			t.Errorf("%d accepted", len(d.accepted))
		}
	})
}

// A probe without an answer ends no wait.
func TestAProbeWithoutAnAnswerIsRepeatedAlone(t *testing.T) {
	t.Parallel()
	const streams = 16
	synctest.Test(t, func(t *testing.T) {
		begun, asked := time.Now(), 0
		d := &daemon{fail: func([]string, int) error {
			asked++
			switch since := time.Since(begun); {
			case since == latency:
				return &client.Error{Status: http.StatusServiceUnavailable, RetryAfter: 30 * time.Second}
			case since < time.Minute:
				return errors.New("no answer")
			}
			return nil
		}}
		runAll(t, d, streams, 2*time.Minute, func(stream int) []*Record { return []*Record{{Value: fmt.Append(nil, stream)}} })
		if len(d.accepted) != streams || asked > 4*streams {
			t.Errorf("%d accepted after %d requests", len(d.accepted), asked)
		}
	})
}

func TestWhatAProbeSays(t *testing.T) {
	t.Parallel()
	const ended, again = -1, 0
	results := make([]client.EventItemResult, 2)
	for name, c := range map[string]struct {
		err  error
		read bool
		want time.Duration // until the next probe
	}{
		"all are accepted":         {nil, true, ended},
		"some are refused":         {errors.New("1 events are still refused"), true, ended},
		"no answer":                {errors.New("no answer"), false, shortPause},
		"the token is refused":     {&client.Error{Status: http.StatusUnauthorized, Code: "TOKEN_INVALID"}, false, ended},
		"the body does not arrive": {&client.Error{Status: http.StatusRequestTimeout, Code: "REQUEST_TIMEOUT"}, false, shortPause},
		"a proxy has no daemon":    {&client.Error{Status: http.StatusNotFound, Code: "HTTP_ERROR"}, false, shortPause},
		"a fault":                  {&client.Error{Status: http.StatusInternalServerError, Code: "INTERNAL"}, false, shortPause},
		"one company is full":      {&client.Error{Status: http.StatusServiceUnavailable, Code: "STORAGE_FULL", RetryAfter: 30 * time.Second, Results: results}, false, again},
		"Redis is away":            {&client.Error{Status: http.StatusServiceUnavailable, Code: "UNAVAILABLE", RetryAfter: 5 * time.Second}, false, 5 * time.Second},
		"for an hour":              {&client.Error{Status: http.StatusServiceUnavailable, RetryAfter: time.Hour}, false, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sender, _ := newSender(t, &daemon{})
				sender.several, sender.pausedUntil = true, time.Now().Add(askTime)
				sender.heed(c.err, true, c.read)
				got := time.Until(sender.pausedUntil)
				if sender.pausedUntil.IsZero() {
					got = ended
				}
				if got != c.want {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		})
	}
}

// A company at its quota holds up no other one of the source.
func TestARefusalOfOneCompanyDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	full, other := uuid.UUID{1}, uuid.UUID{2}
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{fail: func(ids []string, _ int) error {
			if slices.Contains(ids, "0") {
				return &client.Error{Status: http.StatusTooManyRequests, Code: "BACKLOG_FULL", RetryAfter: time.Minute, Results: make([]client.EventItemResult, 2)}
			}
			return nil
		}}
		sender, _ := newSender(t, d)
		sender.opts.Mapper = ofCompany{"0": full, "1": other}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var streams [2]*Stream
		for i := range streams {
			streams[i] = sender.Stream((&settled{}).settle)
			streams[i].Add(ctx, &Record{Value: fmt.Append(nil, i)})
		}
		var running sync.WaitGroup
		for _, stream := range streams {
			running.Go(func() { _ = stream.Run(ctx) })
			synctest.Wait() // the first one is refused
		}
		running.Wait()
		if fmt.Sprint(d.accepted) != "[1]" {
			t.Errorf("accepted %v", d.accepted)
		}
	})
}

// ofCompany has the companies of events by their ids.
type ofCompany map[string]uuid.UUID

func (c ofCompany) Event(_ context.Context, r *Record) (client.EventInput, string, error) {
	company := c[string(r.Value)]
	return client.EventInput{ID: string(r.Value), Timestamp: made, CompanyUUID: &company}, "", nil
}

// distant is a daemon that gets a request after the latency.
type distant struct{ *daemon }

const latency = time.Second

func (d distant) SendAll(ctx context.Context, list []client.EventInput) ([]client.EventItemResult, error) {
	<-time.After(latency)
	return d.daemon.SendAll(ctx, list)
}

// runAll runs streams with records for a time.
func runAll(t *testing.T, d *daemon, streams int, during time.Duration, of func(stream int) []*Record) {
	t.Helper()
	sender, _ := newSender(t, d)
	sender.emitter = distant{d}
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	var running sync.WaitGroup
	for i := range streams {
		stream := sender.Stream((&settled{}).settle)
		stream.Add(ctx, of(i)...)
		running.Go(func() {
			if err := stream.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}
