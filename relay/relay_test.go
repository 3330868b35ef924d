package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"spendhook/api/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// daemon is an Emitter that remembers what it accepted, in order.
type daemon struct {
	mu       sync.Mutex
	accepted []string
	requests [][]string
	// refuse answers for an event; nil: it is accepted.
	refuse func(id string, request int) *client.ItemError
	fail   func(ids []string, request int) error
}

func (d *daemon) SendAll(_ context.Context, list []client.EventInput) ([]client.EventItemResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	d.requests = append(d.requests, ids)
	results := make([]client.EventItemResult, len(list))
	if d.fail != nil {
		if err := d.fail(ids, len(d.requests)); err != nil {
			return results, err
		}
	}
	for i, id := range ids {
		var refusal *client.ItemError
		if d.refuse != nil {
			refusal = d.refuse(id, len(d.requests))
		}
		switch {
		case refusal != nil:
			results[i] = client.EventItemResult{Status: client.EventItemResultStatusREJECTED, Error: refusal}
		case slices.Contains(d.accepted, id):
			results[i].Status = client.EventItemResultStatusDUPLICATE
		default:
			d.accepted = append(d.accepted, id)
			results[i].Status = client.EventItemResultStatusACCEPTED
		}
	}
	return results, nil
}

// byHeader takes the id from the value, and the key as it is. A value that begins with ! has no event.
type byHeader struct{}

var made = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func (byHeader) Event(_ context.Context, r *Record) (client.EventInput, string, error) {
	if strings.HasPrefix(string(r.Value), "!") {
		return client.EventInput{}, "", errors.New("id: no such key")
	}
	return client.EventInput{ID: string(r.Value), Event: "PAID", Timestamp: made}, r.Key, nil
}

func newSender(t *testing.T, d *daemon) (*Sender, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	return New(Options{
		Name: "payments", Emitter: d, Mapper: byHeader{}, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(registry),
	}), registry
}

// settled collects outcomes as "id" or "id: reason".
type settled struct {
	list []string
	err  error
}

func (s *settled) settle(_ context.Context, outcomes []Outcome) error {
	for _, o := range outcomes {
		text := string(o.Value)
		if o.Dead != "" {
			text += ": " + o.Dead
		}
		s.list = append(s.list, text)
	}
	return s.err
}

func records(texts ...string) (list []*Record) {
	for i, text := range texts {
		key, id, _ := strings.Cut(text, "/")
		list = append(list, &Record{Key: key, Value: []byte(id), Position: int64(i), Time: made})
	}
	return list
}

// send runs a stream in a bubble until it waits for records that do not come, for a time.
func send(t *testing.T, d *daemon, after time.Duration, list []*Record) (got settled, runErr error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, d)
		stream := sender.Stream(got.settle)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		stream.Add(ctx, list...)
		runErr = stream.Run(ctx)
	})
	return got, runErr
}

func TestOneRecordOfAKeyIsUnderWay(t *testing.T) {
	t.Parallel()
	d := &daemon{}
	got, err := send(t, d, time.Minute, records("a/a1", "b/b1", "a/a2", "/x", "/y", "a/a3"))
	want := "[[a1 b1 x y] [a2] [a3]]"
	if fmt.Sprint(d.requests) != want || err != nil {
		t.Errorf("sent %v, want %s; %v", d.requests, want, err)
	}
	if fmt.Sprint(got.list) != "[a1 b1 x y a2 a3]" {
		t.Errorf("settled %v", got.list)
	}
}

func TestARefusalThatPassesDelaysItsKey(t *testing.T) {
	t.Parallel()
	d := &daemon{refuse: func(id string, request int) *client.ItemError {
		if id == "a1" && request == 1 {
			return &client.ItemError{Code: "BACKLOG_FULL", RetryAfter: new(5)}
		}
		return nil
	}}
	got, _ := send(t, d, time.Minute, records("a/a1", "a/a2", "b/b1", "b/b2"))
	if fmt.Sprint(got.list) != "[b1 b2 a1 a2]" {
		t.Errorf("settled %v", got.list)
	}
}

func TestWhatIsNotAnsweredIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"no answer": errors.New("connection refused"),
		"full":      &client.Error{Status: http.StatusTooManyRequests, Code: "BACKLOG_FULL", RetryAfter: time.Second},
		"proxy":     &client.Error{Status: http.StatusBadRequest, Code: "HTTP_ERROR"},
		"token":     &client.Error{Status: http.StatusUnauthorized, Code: "TOKEN_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &daemon{fail: func(_ []string, request int) error {
				if request < 20 {
					return failure
				}
				return nil
			}}
			got, err := send(t, d, time.Hour, records("a/a1", "a/a2"))
			if fmt.Sprint(got.list) != "[a1 a2]" || err != nil {
				t.Errorf("settled %v, %v", got.list, err)
			}
		})
	}
}

func TestARecordThatCanNeverBeAcceptedIsDead(t *testing.T) {
	t.Parallel()
	d := &daemon{refuse: func(id string, _ int) *client.ItemError {
		if id == "a2" {
			return &client.ItemError{Code: "VALIDATION_ERROR", Message: "The event is invalid.", Errors: &[]client.FieldError{{Field: "/event", Code: "INVALID", Message: "must be a name"}}}
		}
		return nil
	}}
	got, err := send(t, d, time.Minute, records("a/a1", "a/a2", "a/!", "a/a3"))
	want := "[a1 a2: VALIDATION_ERROR: The event is invalid.; /event: must be a name !: id: no such key a3]"
	if fmt.Sprint(got.list) != want || err != nil {
		t.Errorf("settled %v, %v", got.list, err)
	}
}

func TestATooOldRecordStopsTheStream(t *testing.T) {
	t.Parallel()
	d := &daemon{refuse: func(id string, _ int) *client.ItemError {
		if id == "a2" {
			return &client.ItemError{Code: "VALIDATION_ERROR", Errors: &[]client.FieldError{{Code: "EVENT_TOO_OLD"}}}
		}
		return nil
	}}
	got, err := send(t, d, time.Minute, records("a/a1", "a/a2", "a/a3", "b/b1"))
	if !errors.Is(err, ErrTooOld) || fmt.Sprint(got.list) != "[a1 b1]" {
		t.Errorf("settled %v, %v", got.list, err)
	}
}

// A record is dead if its timestamp is far ahead, also when its own time is: it might block its key for years.
func TestATimestampAheadOfAClockIsWaitedFor(t *testing.T) {
	t.Parallel()
	const none, day, dead = -1, 24 * time.Hour, "[a: VALIDATION_ERROR: ]"
	for name, c := range map[string]struct {
		ahead time.Duration
		made  time.Duration // by how much the time of the record is ahead; none: it has no time
		want  string
	}{
		"by an hour":                            {time.Hour, 0, "[a]"},
		"by two days":                           {2 * day, 0, dead},
		"by two days, without a time":           {2 * day, none, dead},
		"by two days, as its time":              {2 * day, 2 * day, dead},
		"by ten days, and its time by two days": {10 * day, 2 * day, dead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &daemon{refuse: func(_ string, request int) *client.ItemError {
				if request < 10 {
					return &client.ItemError{Code: "VALIDATION_ERROR", Errors: &[]client.FieldError{{Code: "EVENT_IN_FUTURE"}}}
				}
				return nil
			}}
			var got settled
			synctest.Test(t, func(t *testing.T) {
				sender, _ := newSender(t, d)
				sender.opts.Mapper = at(time.Now().Add(c.ahead))
				stream := sender.Stream(got.settle)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				r := &Record{Value: []byte("a")}
				if c.made != none {
					r.Time = time.Now().Add(c.made)
				}
				begun := time.Now()
				stream.Add(ctx, r)
				if oldest, _ := sender.oldest(); !oldest.Equal(begun) { // not the time of the record: an alert would wait for it
					t.Errorf("the oldest record is of %s", oldest)
				}
				_ = stream.Run(ctx)
			})
			if fmt.Sprint(got.list) != c.want {
				t.Errorf("settled %v", got.list)
			}
		})
	}
}

type at time.Time

func (a at) Event(_ context.Context, r *Record) (client.EventInput, string, error) {
	return client.EventInput{ID: string(r.Value), Timestamp: time.Time(a)}, "", nil
}

// The log says who reads, that records are settled, and each new reason of refusals, once.
func TestLogOfASource(t *testing.T) {
	t.Parallel()
	refusals := []any{
		errors.New("connect from port 1: refused"), errors.New("connect from port 2: refused"),
		&client.Error{Status: 503, Code: "STORAGE_FULL"}, &client.ItemError{Code: "COMPANY_MISMATCH"}, nil, nil,
	}
	refusal := func(request int) any { return refusals[min(request, len(refusals))-1] }
	d := &daemon{
		fail: func(_ []string, request int) error {
			err, _ := refusal(request).(error)
			return err
		},
		refuse: func(_ string, request int) *client.ItemError {
			e, _ := refusal(request).(*client.ItemError)
			return e
		},
	}
	var got []string
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, d)
		sender.opts.Log = slog.New(slog.NewTextHandler(lines(func(line string) { got = append(got, line) }),
			&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == "source" {
					return slog.Attr{}
				}
				return a
			}}))
		sender.Active(false)
		sender.Active(true)
		sender.Active(true)
		stream := sender.Stream((&settled{}).settle)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		stream.Add(ctx, records("a/a1", "a/a2")...)
		if err := stream.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	want := []string{
		`level=INFO msg="this relay does not read the source, another one may"`,
		`level=INFO msg="this relay reads the source"`,
		`level=WARN msg="the daemon does not accept events, which are sent again" exception.message="connect from port 1: refused"`,
		`level=WARN msg="the daemon does not accept events, which are sent again" exception.message="503 STORAGE_FULL: Service Unavailable"`,
		`level=WARN msg="the daemon does not accept events, which are sent again" exception.message="COMPANY_MISMATCH: "`,
		`level=INFO msg="the daemon accepts events again"`,
		`level=INFO msg="the first records are settled" records=1`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// lines calls a function with each line that is written.
type lines func(string)

func (l lines) Write(line []byte) (int, error) {
	l(strings.TrimSpace(string(line)))
	return len(line), nil
}

func TestAnErrorOfSettleEndsTheStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, &daemon{})
		got := settled{err: errors.New("no connection")}
		stream := sender.Stream(got.settle)
		stream.Add(t.Context(), records("a/a1", "b/b1")...)
		if err := stream.Run(t.Context()); !errors.Is(err, got.err) {
			t.Error(err)
		}
		stream.Add(t.Context(), records("c/c1")...) // the source may not know yet
		if sender.bytes.Load() != 0 {
			t.Errorf("%d bytes are still counted", sender.bytes.Load())
		}
	})
}

// Accepted records are settled although the place for dead ones cannot be written.
func TestDeadRecordsHoldUpNoAcceptedOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, &daemon{})
		var got settled
		full := errors.New("the disk is full")
		stream := sender.Stream(func(ctx context.Context, outcomes []Outcome) error {
			for _, o := range outcomes {
				if o.Dead != "" {
					return full
				}
			}
			return got.settle(ctx, outcomes)
		})
		stream.Add(t.Context(), records("a/a1", "b/!", "c/c1")...)
		if err := stream.Run(t.Context()); !errors.Is(err, full) || fmt.Sprint(got.list) != "[a1 c1]" {
			t.Errorf("settled %v, %v", got.list, err)
		}
		if n := testutil.ToFloat64(sender.opts.Metrics.records.WithLabelValues("payments", "accepted")); n != 2 || sender.bytes.Load() != 0 {
			t.Errorf("%v are counted, %d bytes are left", n, sender.bytes.Load())
		}
	})
}

func TestAStreamIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, &daemon{})
		stream, other := sender.Stream((&settled{}).settle), sender.Stream((&settled{}).settle)
		for i := range maxUnsettled {
			if stream.Full() {
				t.Fatalf("full with %d records", i)
			}
			stream.Add(t.Context(), &Record{Key: "a", Value: fmt.Append(nil, i)})
		}
		if !stream.Full() || other.Full() {
			t.Errorf("full: %v, the other: %v", stream.Full(), other.Full())
		}
		other.Add(t.Context(), &Record{Value: make([]byte, maxBytes)})
		if !other.Full() {
			t.Error("a stream with too many bytes is not full")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- stream.Run(ctx) }()
		go func() { done <- other.Run(ctx) }()
		if !stream.WaitWhileFull(ctx) || !other.WaitWhileFull(ctx) {
			t.Error("a stream stays full")
		}
		cancel()
		<-done
		<-done
	})
}

// source is a Source with faults.
type source func(ctx context.Context, to *Sender) error

func (s source) Run(ctx context.Context, to *Sender) error { return s(ctx, to) }

func (s source) Behind(context.Context) (map[string]int64, error) {
	return map[string]int64{"0": 7}, nil
}

func TestASourceIsOpenedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sender, registry := newSender(t, &daemon{refuse: func(string, int) *client.ItemError {
			return &client.ItemError{Code: "STORAGE_FULL", RetryAfter: new(30)}
		}})
		runs, begun := 0, time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan bool)
		go func() {
			sender.Serve(ctx, source(func(ctx context.Context, to *Sender) error {
				if runs++; runs < 3 {
					return errors.New("no broker")
				}
				to.Active(true)
				stream := to.Stream((&settled{}).settle)
				stream.Add(ctx, &Record{Value: []byte("a"), Time: begun.Add(-time.Hour)})
				return stream.Run(ctx)
			}))
			close(served)
		}()
		up := func(want string) {
			t.Helper()
			text := "# HELP spendhook_relay_up 1 while the source is open and answers, also if another relay reads it; 0 after a fault, until the source is open again.\n# TYPE spendhook_relay_up gauge\nspendhook_relay_up{source=\"payments\"} " + want + "\n"
			if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "spendhook_relay_up"); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		up("0")
		later, end := context.WithTimeout(t.Context(), time.Minute) // of the bubble
		defer end()
		<-later.Done()
		up("1")
		if got := testutil.ToFloat64(sender.opts.Metrics.oldest); got != float64(begun.Add(-time.Hour).Unix()) {
			t.Errorf("the oldest record is of %v", got)
		}
		if got := testutil.ToFloat64(sender.opts.Metrics.behind); got != 7 {
			t.Errorf("lag %v", got)
		}
		cancel()
		<-served
		if runs != 3 {
			t.Errorf("opened %d times", runs)
		}
	})
}

func TestAPartThatIsHeldIsTheOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sender, _ := newSender(t, &daemon{})
		begun := time.Now()
		sender.Hold(true)
		<-time.After(time.Minute)
		sender.Hold(true)
		stream := sender.Stream((&settled{}).settle)
		stream.Add(t.Context(), &Record{Value: []byte("a")})
		if oldest, _ := sender.oldest(); !oldest.Equal(begun) {
			t.Errorf("the oldest record is of %s", oldest)
		}
		sender.Hold(false)
		if oldest, _ := sender.oldest(); !oldest.Equal(time.Now()) {
			t.Errorf("the oldest record is of %s", oldest)
		}
	})
}

// TestOrderOfKeys sends any records through a daemon that refuses at random.
func TestOrderOfKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c"}), 1, 200).Draw(rt, "keys")
		refusals := rapid.SliceOfN(rapid.Bool(), 64, 64).Draw(rt, "refusals")
		n := 0
		d := &daemon{refuse: func(string, int) *client.ItemError {
			n++
			if refusals[n%len(refusals)] && n%97 != 0 {
				return &client.ItemError{RetryAfter: new(1)}
			}
			return nil
		}}
		var list []*Record
		for i, key := range keys {
			list = append(list, &Record{Key: key, Value: fmt.Appendf(nil, "%s-%d", key, i)})
		}
		got, err := send(t, d, 24*time.Hour, list)
		if err != nil || len(got.list) != len(keys) {
			rt.Fatalf("settled %d of %d: %v", len(got.list), len(keys), err)
		}
		for key := range map[string]bool{"a": true, "b": true, "c": true} {
			last := -1
			for _, id := range d.accepted {
				var i int
				if _, err := fmt.Sscanf(id, key+"-%d", &i); err == nil {
					if i < last {
						rt.Fatalf("%s after %d", id, last)
					}
					last = i
				}
			}
		}
	})
}
