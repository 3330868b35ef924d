package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/audit"
	"spendhook/internal/cursor"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

const key = "sh:{audit}:log"

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type bundle struct {
	*audit.Log
	t        *testing.T
	client   redis.UniversalClient
	dir      string
	logs     *logged
	registry *prometheus.Registry
	put      int // calls of at
}

func setup(t *testing.T, client redis.UniversalClient, adjust ...func(*audit.Options)) *bundle {
	t.Helper()
	b := &bundle{t: t, client: client, dir: t.TempDir(), logs: &logged{}, registry: prometheus.NewRegistry()}
	o := audit.Options{
		Dir: b.dir, Registerer: b.registry,
		Logger: slog.New(slog.NewTextHandler(b.logs, nil)),
	}
	if client != nil {
		o.Client = client
	}
	for _, f := range append([]func(*audit.Options){audit.Within(time.Minute)}, adjust...) {
		f(&o)
	}
	b.Log = audit.Open(o)
	t.Cleanup(b.Close)
	return b
}

func (b *bundle) file() string { return filepath.Join(b.dir, "audit-pending.ndjson") }

func (b *bundle) all(f audit.Filter) []audit.Entry {
	b.t.Helper()
	var list []audit.Entry
	for pages := 0; ; pages++ {
		page, err := b.List(b.t.Context(), f)
		if err != nil || pages > 1000 {
			b.t.Fatal(err, pages)
		}
		list = append(list, page.Items...)
		if page.Next == "" {
			return list
		}
		f.Cursor = page.Next
	}
}

func (b *bundle) metric(name, label string) float64 {
	b.t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	b.t.Fatalf("no metric %s %s", name, label)
	return 0
}

func entry(subject, action string) audit.Entry {
	return audit.Entry{
		Actor: audit.Actor{Kind: audit.Client, Subject: subject}, Action: action,
		Target: audit.Target{Kind: "card", IDs: []string{"c-" + subject}}, Outcome: audit.Success,
	}
}

func TestWhatIsRecordedIsListed(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	company := uuid.New()
	want := audit.Entry{
		ID: uuid.NewString(), At: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		Actor: audit.Actor{
			Kind: audit.Client, Subject: "s", ClientID: "c", Issuer: "i", CompanyUUID: &company, Certificate: "x5t",
		},
		Action: "card.lock", Target: audit.Target{Kind: "card", IDs: []string{"1", "2"}}, CompanyUUID: &company,
		Fields: []string{"lock"}, Detail: "d \xff", Outcome: audit.Unknown, RequestID: "r", Address: "192.0.2.1",
	}
	b.Record(want)
	list := b.all(audit.Filter{})
	if len(list) != 1 || time.Since(list[0].RecordedAt).Abs() > time.Minute {
		t.Fatalf("%+v", list)
	}
	list[0].RecordedAt = time.Time{}
	want.Detail = "d \uFFFD"
	if diff := cmp.Diff(want, list[0]); diff != "" {
		t.Error(diff)
	}
	b.Record(entry("a", "card.lock"))
	if got := b.all(audit.Filter{})[0]; got.ID == "" || got.At.IsZero() {
		t.Errorf("no id or time: %+v", got)
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	acme, other := uuid.New(), uuid.New()
	for i, action := range []string{"card.create", "card.lock", "cardinal.lock", "subscriber.create"} {
		e := entry(strconv.Itoa(i), action)
		e.Actor.ClientID = "client-" + strconv.Itoa(i)
		if i < 2 {
			e.CompanyUUID = []*uuid.UUID{&acme, &other}[i]
		}
		b.Record(e)
	}
	for _, c := range []struct {
		filter audit.Filter
		want   string
	}{
		{audit.Filter{}, "3210"},
		{audit.Filter{Company: &acme}, "0"},
		{audit.Filter{Actor: "2"}, "2"},
		{audit.Filter{Actor: "client-2"}, "2"},
		{audit.Filter{Action: "card"}, "10"},
		{audit.Filter{Action: "card.lock"}, "1"},
		{audit.Filter{Action: "card.l"}, ""},
		{audit.Filter{Target: "c-3"}, "3"},
		{audit.Filter{Target: "c-3", Action: "card"}, ""},
	} {
		var got strings.Builder
		for _, e := range b.all(c.filter) {
			got.WriteString(e.Actor.Subject)
		}
		if got.String() != c.want {
			t.Errorf("%+v: %s, want %s", c.filter, &got, c.want)
		}
	}
}

// at puts an entry into the log as recorded at a time.
func (b *bundle) at(ms int64, subject string) {
	b.t.Helper()
	text := fmt.Sprintf(`{"id":"%s","actor":{"kind":"cli","subject":%q},"action":"a.b","outcome":"success"}`, uuid.NewString(), subject)
	defer func() { b.put++ }()
	if err := b.client.ZAdd(b.t.Context(), key, redis.Z{Score: float64(ms*1000 + int64(b.put%1000)), Member: text}).Err(); err != nil {
		b.t.Fatal(err)
	}
}

func TestAPeriodIsInclusiveAndPagesAreWhole(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	start := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 1300 { // ten of the same millisecond each
		b.at(start.UnixMilli()+int64(i/10), strconv.Itoa(i))
	}
	from, to := start.Add(20*time.Millisecond), start.Add(99*time.Millisecond)
	for _, size := range []int{1, 7, 100, 1000} {
		list := b.all(audit.Filter{From: &from, To: &to, Size: size})
		if len(list) != 800 {
			t.Fatalf("%d entries by pages of %d, want 800", len(list), size)
		}
		for i, e := range list {
			if want := strconv.Itoa(999 - i); e.Actor.Subject != want {
				t.Fatalf("entry %d is %s, want %s", i, e.Actor.Subject, want)
			}
		}
		if size == 1 {
			if want := start.Add(99 * time.Millisecond); !list[0].RecordedAt.Equal(want) {
				t.Errorf("recorded at %v, want %v", list[0].RecordedAt, want)
			}
		}
	}
}

// A rare entry is found after several short calls.
func TestARareMatchIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	start := time.Now().Add(-time.Hour).UnixMilli()
	b.at(start, "rare")
	pipe := b.client.Pipeline()
	for i := range 12_000 {
		pipe.ZAdd(t.Context(), key, redis.Z{Score: float64((start + 1 + int64(i)) * 1000), Member: fmt.Sprintf(`{"id":"%d"}`, i)})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := b.List(t.Context(), audit.Filter{Actor: "rare"})
	if err != nil || len(first.Items) != 0 || first.Next == "" {
		t.Fatalf("%+v, %v: looked at everything in one call?", first, err)
	}
	if list := b.all(audit.Filter{Actor: "rare"}); len(list) != 1 {
		t.Errorf("found %d", len(list))
	}
}

func TestBadCursors(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	to := time.UnixMilli(1000)
	all := fmt.Sprint((*uuid.UUID)(nil), "", "\n", "", "\n", "", "\n", (*time.Time)(nil), (*time.Time)(nil))
	for _, place := range []string{"x", "1-1", "-1", "+1", "(1", "12345678901234567"} {
		if _, err := b.List(t.Context(), audit.Filter{Cursor: cursor.Encode("audit", all, place)}); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("%q: %v, want ErrBad", place, err)
		}
	}
	good := cursor.Encode("audit", all, "1")
	if _, err := b.List(t.Context(), audit.Filter{Cursor: good}); err != nil {
		t.Error(err)
	}
	if _, err := b.List(t.Context(), audit.Filter{Cursor: good, To: &to}); !errors.Is(err, cursor.ErrBad) {
		t.Errorf("under another filter: %v, want ErrBad", err)
	}
}

func TestExpiredEntriesAreHiddenAndTrimmed(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t), func(o *audit.Options) {
		o.Retention, o.MaxEntries = time.Hour, 1000
	})
	old := time.Now().Add(-2 * time.Hour).UnixMilli()
	for i := range 12_000 { // more than one trim removes
		b.at(old+int64(i), "old")
	}
	b.Record(entry("new", "a.b"))
	if list := b.all(audit.Filter{}); len(list) != 1 {
		t.Errorf("%d are shown", len(list))
	}
	waittest.Until(t, "trimmed", func() bool { return b.client.ZCard(t.Context(), key).Val() == 1 })
	if list := b.all(audit.Filter{}); len(list) != 1 {
		t.Errorf("%d are left", len(list))
	}
	if strings.Contains(b.logs.String(), "audit.max_entries") {
		t.Errorf("logged as removed too early: %s", b.logs)
	}
}

func TestEntriesBeyondMaxEntriesAreTrimmedAndLogged(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t), func(o *audit.Options) {
		o.MaxEntries = 500
	})
	start := time.Now().Add(-time.Hour).UnixMilli()
	for i := range 2000 {
		b.at(start+int64(i), strconv.Itoa(i))
	}
	waittest.Until(t, "trimmed", func() bool { return b.client.ZCard(t.Context(), key).Val() == 500 })
	list := b.all(audit.Filter{Size: 1000})
	if len(list) != 500 || list[0].Actor.Subject != "1999" {
		t.Errorf("%d are left, the newest %s", len(list), list[0].Actor.Subject)
	}
	waittest.Until(t, "logged", func() bool { return strings.Contains(b.logs.String(), "audit.max_entries") })
	waittest.Until(t, "the gauge", func() bool {
		return b.metric("spendhook_audit_entries", "") == float64(b.client.ZCard(t.Context(), key).Val())
	})
}

// Record has written an entry to Redis when it returns.
func TestRecordIsInRedisWhenItReturns(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 50 {
				e := entry(strconv.Itoa(i), "a.b")
				e.ID = uuid.NewString()
				b.Record(e)
				for _, text := range b.client.ZRevRange(t.Context(), key, 0, 400).Val() {
					if strings.Contains(text, e.ID) {
						return
					}
				}
				t.Errorf("not in Redis")
			}
		})
	}
	group.Wait()
	if _, err := os.Stat(b.file()); err == nil {
		t.Error("something was spooled")
	}
}

// While Redis is down entries are spooled to disk. No entry is lost once Redis is back, even
// if the process was killed.
func TestEntriesSurviveARedisOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	b := setup(t, server.Client())
	b.Record(entry("0", "a.b"))
	server.Kill()
	var group sync.WaitGroup
	for worker := range 24 { // so that many share a sync of the file
		group.Go(func() {
			for i := range 50 {
				b.Record(entry(strconv.Itoa(1+worker*50+i), "a.b"))
			}
		})
	}
	group.Wait()
	text, err := os.ReadFile(b.file())
	if err != nil || bytes.Count(text, []byte("\n")) != 1200 {
		t.Fatalf("%d lines, %v", bytes.Count(text, []byte("\n")), err)
	}
	if info, _ := os.Stat(b.file()); info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
	if b.metric("spendhook_audit_entries_total", "spooled") != 1200 {
		t.Error("not counted")
	}
	// A process that crashes while writing leaves a torn line. It is appended: a reader that found the file empty
	// would truncate it.
	file, err := os.OpenFile(b.file(), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString("\n{\"id\":\"torn")
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Record(entry("1201", "a.b"))
	server.Restart()
	next := audit.Open(audit.Options{Client: server.Client(), Dir: b.dir, Logger: slog.New(slog.NewTextHandler(b.logs, nil))})
	defer next.Close()
	n := &bundle{Log: next, t: t}
	waittest.Until(t, "all in Redis", func() bool {
		return len(n.all(audit.Filter{Size: 1000})) == 1202
	})
	waittest.Until(t, "the file is empty", func() bool { info, err := os.Stat(b.file()); return err == nil && info.Size() == 0 })
	if !strings.Contains(b.logs.String(), "torn") {
		t.Error("the torn line is not logged")
	}
}

// Redis gets entries again whose reply was lost, and all entries of a file of which it took a part. The
// log has each of them once.
func TestEachEntryIsInTheLogOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	var lost atomic.Int32
	client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") && len(cmd.Args()) > 6 && lost.Add(1) <= 3 { // an add of more than two entries
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		return err
	}})
	b := setup(t, client)
	const most = 1201 // three batches
	cli := audit.Open(audit.Options{Dir: b.dir})
	for i := range most {
		cli.Record(entry(strconv.Itoa(i), "client.create"))
	}
	cli.Close()
	waittest.Until(t, "the file is empty", func() bool { info, err := os.Stat(b.file()); return err == nil && info.Size() == 0 })
	if n := len(b.all(audit.Filter{Size: 1000})); n != most || lost.Load() < 6 {
		t.Errorf("%d entries of %d after %d writes", n, most, lost.Load())
	}
}

func TestARunningLogMovesSpooledEntriesToRedis(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	cli := audit.Open(audit.Options{Dir: b.dir})
	large := entry("cli", "client.create")
	large.Target.IDs = []string{strings.Repeat("x", 2<<20)}
	cli.Record(large)
	cli.Record(entry("cli", "client.create"))
	cli.Close()
	waittest.Until(t, "in Redis", func() bool { return len(b.all(audit.Filter{Actor: "cli"})) == 2 })
}

func TestRecordIsFastWhileRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	b := setup(t, server.Client(), audit.Within(0))
	server.Pause()
	started := time.Now()
	for range 20 {
		b.Record(entry("a", "a.b"))
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("20 entries took %v", took)
	}
	server.Resume()
	waittest.Until(t, "in Redis", func() bool { return len(b.all(audit.Filter{Actor: "a", Size: 100})) >= 20 })
}

func TestEntriesThatCannotBeStoredAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil, func(o *audit.Options) { o.Dir = filepath.Join(o.Dir, "missing") })
	b.Record(entry("someone", "card.lock"))
	if text := b.logs.String(); !strings.Contains(text, "someone") || !strings.Contains(text, "card.lock") {
		t.Errorf("logged: %s", text)
	}
	if b.metric("spendhook_audit_entries_total", "lost") != 1 {
		t.Error("not counted")
	}
}

func TestRecordAfterCloseGoesToTheFile(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.New(t))
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { b.Record(entry("a", "a.b")) })
	}
	b.Close()
	group.Wait()
	text, _ := os.ReadFile(b.file())
	if total := bytes.Count(text, []byte("\n")) + len(b.all(audit.Filter{Size: 100})); total != 20 {
		t.Errorf("%d of 20 entries are kept", total)
	}
}
