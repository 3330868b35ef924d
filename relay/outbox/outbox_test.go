package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spendhook/internal/pgtest"
	"spendhook/relay"
)

func TestRowsOfAKeyAreSentInOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	e := &emitter{}
	db.serve(e)
	db.insert(1, 3000)
	e.wait(t, 3000)
	e.checkOrder(t)
	db.waitEmpty()
}

func TestARowThatIsCommittedLateIsSent(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	late, err := db.conn().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), insertRows, 1, 1); err != nil {
		t.Fatal(err)
	}
	db.insert(2, 2)
	e := &emitter{}
	db.serve(e)
	e.wait(t, 1)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.wait(t, 2)
	if got := e.accepted(); !slices.Equal(got, []string{"row-2", "row-1"}) {
		t.Error(got)
	}
	db.waitEmpty()
}

// A row that was committed late is read before one of its key that was inserted afterwards, although rows with higher
// numbers than its own were read already.
func TestTheLowestRowIsReadFirst(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 5)
	r := db.reader(&emitter{})
	r.memory = map[int64]bool{1: true, 3: true, 4: true}
	if n, full, err := r.readRows(t.Context(), 1); n != 1 || full || err != nil {
		t.Fatal(n, full, err)
	}
	if !r.memory[2] || r.memory[5] {
		t.Error(r.memory)
	}
}

func TestARowThatCannotBeAcceptedIsMoved(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	poison := func(id string) bool { return strings.HasSuffix(id, "00") }
	e := &emitter{reject: poison}
	db.serve(e)
	db.insert(1, 1000)
	e.wait(t, 990)
	db.waitEmpty()
	e.checkOrder(t)
	rows, err := db.conn().Query(t.Context(), `SELECT seq::text || id || event || key || metadata || error_code || error_message || reason
		FROM spendhook_outbox_dead WHERE dead_at >= "timestamp" ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for n := 100; n <= 1000; n += 100 {
		want = append(want, fmt.Sprintf(`%[1]drow-%[1]dPAYMENT_PAIDkey-%d{"n": %[1]d.50}CODEmessageINVALID: �on purpose�`, n, n%keys))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNothingIsLostWhenPostgreSQLIsRestarted(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	db := openDatabase(t, server.URL())
	db.insert(1, 2000)
	e := &emitter{held: make(chan struct{})}
	db.serve(e)
	e.waitSent(t, 1)
	server.Stop()
	close(e.held)
	e.wait(t, 1) // what is accepted now cannot be deleted
	server.Restart()
	e.wait(t, 2000)
	e.checkOrder(t)
	db.waitEmpty()
	if e.repeated() == 0 {
		t.Error("nothing was sent twice: the test does not test a restart")
	}
}

func TestNothingIsLostWhenTheConnectionsAreLost(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	e := &emitter{}
	db.serve(e)
	for n := range 3 {
		db.insert(n*1000+1, (n+1)*1000)
		e.wait(t, n*1000+1)
		if _, err := db.conn().Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'spendhook-relay' AND datname = current_database()`); err != nil {
			t.Fatal(err)
		}
	}
	e.wait(t, 3000)
	e.checkOrder(t)
	db.waitEmpty()
}

// A relay whose session has lost the lock, which another one got, sends on beside it.
func TestTwoThatReadHarmNeitherOrderNorRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 2000)
	e := &emitter{reject: func(id string) bool { return strings.HasSuffix(id, "00") }}
	for range 2 {
		r := db.reader(e)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- r.stream.Run(ctx) }()
		go func() { ended <- r.read(ctx) }()
		t.Cleanup(func() {
			cancel()
			for range cap(ended) {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
	e.wait(t, 1980)
	e.checkOrder(t)
	db.waitEmpty()
	if got := db.count("spendhook_outbox_dead"); got != 20 {
		t.Errorf("%d dead rows, not 20", got)
	}
}

func TestOneOfTwoReadsAndTheOtherTakesOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	first, second := &emitter{}, &emitter{}
	one := db.serve(first)
	one.waitActive(1)
	two := db.serve(second)
	two.waitLog("this relay does not read the source")
	db.insert(1, 100)
	first.wait(t, 100)
	if n := len(second.accepted()); n > 0 || two.active() != 0 {
		t.Errorf("the second one sent %d, and is active: %v", n, two.active())
	}
	one.stop()
	two.waitActive(1)
	db.insert(101, 200)
	second.wait(t, 100)
	if n := len(first.accepted()); n != 100 {
		t.Errorf("the first one sent %d", n)
	}
}

func TestRowsWaitWhileTheDaemonRefusesThem(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 5000) // more than a stream takes
	e := &emitter{refusals: 4}
	db.serve(e)
	e.wait(t, 5000)
	e.checkOrder(t)
	db.waitEmpty()
	if n := db.count("spendhook_outbox_dead"); n != 0 {
		t.Errorf("%d rows are dead", n)
	}
}

func TestARowThatIsTooOldStays(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 3)
	e := &emitter{tooOld: "row-2"}
	err := db.source().Run(t.Context(), db.sender(e).sender)
	if !errors.Is(err, relay.ErrTooOld) {
		t.Fatal(err)
	}
	if n := db.count(`spendhook_outbox WHERE id = 'row-2'`); n != 1 {
		t.Errorf("%d rows", n)
	}
	if n := db.count("spendhook_outbox_dead"); n != 0 {
		t.Errorf("%d rows are dead", n)
	}
}

func TestANotificationWakesTheSource(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := db.source()
	s.poll = never
	e := &emitter{}
	db.serveSource(s, e)
	for n := 1; n <= 3; n++ { // after the first, the table was read and found empty
		db.insert(n, n)
		if _, err := db.conn().Exec(t.Context(), `NOTIFY spendhook_outbox`); err != nil {
			t.Fatal(err)
		}
		e.wait(t, n)
	}
}

func TestATableIsReadWithoutNotifications(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	e := &emitter{}
	db.serve(e)
	for n := 1; n <= 2; n++ {
		db.insert(n, n)
		e.wait(t, n)
	}
}

// 300 rows of 256 KiB are more than a stream takes.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	if _, err := db.conn().Exec(t.Context(), `INSERT INTO spendhook_outbox (id, event, metadata)
		SELECT 'row-' || n, 'PAYMENT_PAID', json_build_object('text', repeat('x', 262000)) FROM generate_series(1, 300) n`); err != nil {
		t.Fatal(err)
	}
	r := db.reader(&emitter{})
	n, full, err := r.readRows(t.Context(), manyRows)
	if most := 64<<20/262000 + 1; err != nil || !full || n > most {
		t.Errorf("read %d rows, full: %v, %v", n, full, err)
	}
}

func TestValueIsTheEventAsItWasWritten(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	if _, err := db.conn().Exec(t.Context(), `SET TimeZone = 'Asia/Kolkata'; INSERT INTO spendhook_outbox
		(id, company_uuid, event, key, "timestamp", metadata, error_code, error_message) VALUES
		('a', 'ABCDEF00-0000-4000-8000-000000000001', 'PAID', 'k', '2026-11-20 09:30:00.123999+02', '{"amount": 12.50, "e":1E2,  "t":"\u00e9<"}', 'C', 'a "quote"'),
		('b', NULL, 'PAID', NULL, '2026-11-20 09:30:00Z', '{}', NULL, NULL)`); err != nil {
		t.Fatal(err)
	}
	r := db.reader(&emitter{})
	rows, err := r.reads.Query(t.Context(), r.names.read, []int64{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		record, err := r.scan(row.(pgx.Rows))
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d %s %d %v %s", record.Position, record.Key, record.Time.UnixMicro(), record.From, record.Value), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1 k 1795159800123999 map[seq:1 table:"spendhook_outbox"] {"id" : "a", "companyUuid" : "abcdef00-0000-4000-8000-000000000001", "event" : "PAID", "timestamp" : "2026-11-20T07:30:00.123Z", "metadata" : {"amount": 12.50, "e":1E2,  "t":"\u00e9<"}, "errorCode" : "C", "errorMessage" : "a \"quote\""}`,
		`2  1795167000000000 map[seq:2 table:"spendhook_outbox"] {"id" : "b", "companyUuid" : null, "event" : "PAID", "timestamp" : "2026-11-20T09:30:00.000Z", "metadata" : {}, "errorCode" : null, "errorMessage" : null}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestBehindCountsToABound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, rows := range []struct{ to, want int }{{7, 7}, {100_001, 100_000}} {
		db.insert(db.count("spendhook_outbox")+1, rows.to)
		got, err := db.source().Behind(t.Context())
		if err != nil || !maps.Equal(got, map[string]int64{"": int64(rows.want)}) {
			t.Errorf("%v, %v", got, err)
		}
	}
}

// A million rows that are left do not make one statement slow: it reads from the index.
func TestTheIndexGivesTheOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 20_000)
	known := make([]int64, 4000)
	for i := range known {
		known[i] = int64(i + 1)
	}
	rows, err := db.conn().Query(t.Context(), "EXPLAIN "+db.source().names.read, pgx.QueryExecModeCacheDescribe, known, manyRows)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); strings.Contains(text, "Sort") || !strings.Contains(text, "Index Scan") {
		t.Error(text)
	}
}
