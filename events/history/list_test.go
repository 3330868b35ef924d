package history_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
)

func TestGetManyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var refs []events.Ref
	for i := range 1200 {
		id := strconv.Itoa(i)
		if i%3 != 0 {
			b.Accept(t, newEvent(id))
		}
		refs = append(refs, events.Ref{Company: company, ID: id})
	}
	found, err := b.Reader.GetMany(t.Context(), refs)
	if err != nil || len(found) != len(refs) {
		t.Fatalf("%d found, %v", len(found), err)
	}
	for i, s := range found {
		if (s != nil) != (i%3 != 0) || s != nil && s.ID != refs[i].ID {
			t.Fatalf("at %d: %+v", i, s)
		}
	}
}

func TestGetUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, newEvent("e1"))
	for _, r := range []events.Ref{{Company: company, ID: "e2"}, {Company: uuid.New(), ID: "e1"}} {
		if _, err := b.Reader.Get(t.Context(), r); !errors.Is(err, events.ErrNotFound) {
			t.Errorf("get %s: %v, want ErrNotFound", r, err)
		}
	}
}

// A head has the same short fields as the whole event.
func TestHeads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var refs []events.Ref
	for i, name := range []string{"A", "PAYMENT_PAID", "L" + strings.Repeat("_", 63)} {
		e := newEvent("evt_" + strconv.Itoa(i))
		e.Type = name
		e.Metadata = jsontext.Value(`{"note":"` + strings.Repeat("n", i*300) + `"}`)
		b.Accept(t, e)
		refs = append(refs, events.Ref{Company: company, ID: e.ID})
	}
	gone, damaged := events.Ref{Company: company, ID: "gone"}, events.Ref{Company: company, ID: "damaged"}
	b.Redis.Set(t.Context(), layout.EventKey(damaged), "R17000000000010000000a0000000001{}", 0)
	heads, _, err := history.Heads(b.Reader, t.Context(), append(refs, gone, damaged))
	if err != nil || len(heads) != 5 || heads[3] != nil || heads[4] != nil {
		t.Fatalf("%v, %v", heads, err)
	}
	for i, ref := range refs {
		want, err := b.Reader.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		got := heads[i]
		if got == nil || got.Ref() != ref || got.Type != want.Type || got.State != want.State ||
			got.Sequence != want.Sequence || !got.AcceptedAt.Equal(want.AcceptedAt) {
			t.Errorf("head %+v, want that of %+v", got, want)
		}
	}
}

// item is an event in the model of a list.
type item struct {
	company uuid.UUID
	number  int64
	ms      int64
	id, typ string
}

func newestFirst(a, b item) int {
	return cmp.Or(
		cmp.Compare(partition.Of(a.company), partition.Of(b.company)),
		bytes.Compare(a.company[:], b.company[:]),
		cmp.Compare(b.number, a.number))
}

// The pages of any list, put together, are what a plain filter over all events
// gives, in order: with many events in one millisecond, and with more coming
// in while the pages are read.
func TestPagesAgainstModel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(rt *rapid.T) {
		b.Redis.FlushDB(t.Context()) // this test's own database
		model := b.populate(t, rt)
		f := drawFilter(rt, model)
		expect := slices.Collect(filtered(model, f))
		slices.SortFunc(expect, newestFirst)

		var got []item
		for page := 0; ; page++ {
			p, err := b.Reader.List(t.Context(), f)
			if err != nil || len(p.Items) > f.Size || page > len(model) {
				rt.Fatalf("page %d: %d items, %v", page, len(p.Items), err)
			}
			for _, s := range p.Items {
				got = append(got, item{s.CompanyUUID, s.Sequence, s.AcceptedAt.UnixMilli(), s.ID, s.Type})
			}
			if f.Cursor = p.Next; p.Next == "" {
				break
			}
			b.later(t, fmt.Sprintf("late%d", page), model[0].company)
		}
		if !slices.Equal(got, expect) {
			rt.Fatalf("pages of %+v\n got %v\nwant %v", f, got, expect)
		}
	})
}

// populate accepts events of a few companies in a few milliseconds, by a clock that
// goes back at times. No event of a company is accepted before an earlier one.
func (b *bundle) populate(t *testing.T, rt *rapid.T) []item {
	t.Helper()
	companies := []uuid.UUID{{1}, {2}, {3}, {4}} // some share a partition: see below
	for i := 5; partition.Of(companies[3]) != partition.Of(companies[0]); i++ {
		companies[3] = uuid.UUID{byte(i), byte(i >> 8)}
	}
	var model []item
	last := map[uuid.UUID]item{}
	for i := range rapid.IntRange(1, 60).Draw(rt, "events") {
		e := newEvent(fmt.Sprintf("e%d", i*37%100))
		e.CompanyUUID = rapid.SampledFrom(companies).Draw(rt, "company")
		e.Type = rapid.SampledFrom([]string{"A", "A", "B"}).Draw(rt, "type")
		ms := noon.UnixMilli() + rapid.Int64Range(0, 4).Draw(rt, "ms")
		b.Clock.Store(ms)
		want(t, "populate", b.Accept(t, e), "ACCEPTED")
		before := last[e.CompanyUUID]
		last[e.CompanyUUID] = item{e.CompanyUUID, before.number + 1, max(before.ms, ms), e.ID, e.Type}
		model = append(model, last[e.CompanyUUID])
	}
	b.Clock.Store(noon.UnixMilli() + 10)
	return model
}

// later accepts one more event, after all the others.
func (b *bundle) later(t *testing.T, id string, company uuid.UUID) {
	t.Helper()
	e := newEvent(id)
	e.CompanyUUID = company
	e.Type = "LATE"
	b.Clock.Add(1)
	b.Accept(t, e)
}

func drawFilter(rt *rapid.T, model []item) history.Filter {
	f := history.Filter{Size: rapid.IntRange(1, 9).Draw(rt, "size")}
	if rapid.Bool().Draw(rt, "of a company") {
		which := rapid.SampledFrom(model).Draw(rt, "which")
		f.Company = &which.company
	}
	f.Types = rapid.SampledFrom([][]string{nil, {"A"}, {"B"}, {"A", "B"}, {"B", "C"}}).Draw(rt, "of types")
	if rapid.Bool().Draw(rt, "from") {
		at := noon.Add(time.Duration(rapid.IntRange(0, 8).Draw(rt, "from at")) * time.Millisecond / 2)
		f.From = &at
	}
	to := noon.Add(time.Duration(rapid.IntRange(0, 8).Draw(rt, "to at")) * time.Millisecond / 2)
	f.To = &to // so that late ones are not of the list
	return f
}

func filtered(model []item, f history.Filter) func(yield func(item) bool) {
	return func(yield func(item) bool) {
		for _, i := range model {
			at := time.UnixMilli(i.ms)
			if (f.Company == nil || i.company == *f.Company) && (len(f.Types) == 0 || slices.Contains(f.Types, i.typ)) &&
				(f.From == nil || !at.Before(*f.From)) && !at.After(*f.To) && !yield(i) {
				return
			}
		}
	}
}

// A list with an Only function has the right pages, and calls the function only for events that
// it examines.
func TestListOnlySome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t, 2500, always)
	f := history.Filter{Company: &company, Size: 7}
	asked := 0
	f.Only = func(_ context.Context, refs []events.Ref) (on []bool, work int, err error) {
		asked += len(refs)
		for _, ref := range refs {
			on = append(on, strings.HasSuffix(ref.ID, "00"))
		}
		return on, 4 * len(refs), nil
	}
	var got []string
	calls := 0
	for ; calls == 0 || f.Cursor != ""; calls++ {
		before := asked
		p, err := b.Reader.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Items {
			got = append(got, e.ID)
		}
		if asked-before > 300 { // 1,000 entries' worth of work, and a batch
			t.Errorf("one call asked about %d events", asked-before)
		}
		f.Cursor = p.Next
	}
	if len(got) != 25 || got[0] != "e002400" || got[24] != "e000000" {
		t.Errorf("%d: %v", len(got), got)
	}
	if calls < 2500/300 {
		t.Errorf("%d calls", calls)
	}
	first, err := b.Reader.List(t.Context(), history.Filter{Company: &company, Only: f.Only, OnlyKey: "hundreds"})
	if err != nil || first.Next == "" {
		t.Fatal(first.Next, err)
	}
	f.OnlyKey, f.Cursor = "others", first.Next
	if _, err := b.Reader.List(t.Context(), f); !errors.Is(err, cursor.ErrBad) {
		t.Errorf("the cursor of another list: %v", err)
	}
}

// fill writes n index entries, several in each millisecond, and the events for which has
// returns true. It bypasses accept for speed.
func (b *bundle) fill(tb testing.TB, n int, has func(int) bool) {
	tb.Helper()
	pipe := b.Redis.Pipeline()
	for i := range n {
		e := newEvent(fmt.Sprintf("e%06d", i))
		if i == 0 {
			e.Type = "RARE"
		}
		ms := noon.UnixMilli() - int64(n-i)/7
		pipe.ZAdd(tb.Context(), layout.IndexKey(company), redis.Z{Score: float64(ms), Member: e.ID})
		if body, err := e.Body(); err == nil && has(i) {
			pipe.Set(tb.Context(), layout.EventKey(events.Ref{Company: company, ID: e.ID}), kept(events.Settled, ms, i+1, e, body), 0)
		}
	}
	pipe.ZAdd(tb.Context(), partition.Key(company, "companies"),
		redis.Z{Score: float64(noon.UnixMilli()), Member: company.String()})
	if _, err := pipe.Exec(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// kept is the stored value of an event.
func kept(state events.State, ms int64, sequence int, e events.Event, body []byte) string {
	head := fmt.Sprintf(`{"id":"%s","companyUuid":"%s",`, e.ID, e.CompanyUUID)
	return fmt.Sprintf("%c%013d%08x%010x%s", state, ms, 1, sequence, strings.TrimPrefix(string(body), head))
}

func always(int) bool { return true }

// A rare type, or index entries without an event, need more calls, not longer ones.
func TestListBoundsItsWork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		filter history.Filter
		has    func(int) bool
	}{
		"rare type":               {history.Filter{Company: &company, Types: []string{"RARE"}}, always},
		"rare type, all":          {history.Filter{Types: []string{"RARE"}}, always},
		"only the oldest is left": {history.Filter{Company: &company}, func(i int) bool { return i == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.fill(t, 2500, tc.has)
			var sizes []int
			f := tc.filter
			for f.Cursor != "" || len(sizes) == 0 {
				p, err := b.Reader.List(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				sizes = append(sizes, len(p.Items))
				f.Cursor = p.Next
			}
			if !slices.Equal(sizes, []int{0, 0, 1}) {
				t.Errorf("pages of %v items, want 1,000 examined in each of the first two", sizes)
			}
		})
	}
}

// Companies without matching events count as work.
func TestListOfAllCompaniesBoundsItsWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 250 {
		e := newEvent("e")
		e.CompanyUUID = uuid.UUID{byte(i), 1}
		b.Accept(t, e)
	}
	f := history.Filter{Types: []string{"RARE"}}
	calls := 0
	for calls == 0 || f.Cursor != "" {
		p, err := b.Reader.List(t.Context(), f)
		if err != nil || len(p.Items) > 0 {
			t.Fatalf("%v, %v", p, err)
		}
		f.Cursor = p.Next
		calls++
	}
	if calls != 3 {
		t.Errorf("%d calls over 250 companies, want 3", calls)
	}
}

func TestListSizes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t, 120, always)
	for size, expect := range map[int]int{0: 20, 1: 1, 100: 100, 5000: 100} {
		p, err := b.Reader.List(t.Context(), history.Filter{Company: &company, Size: size})
		if err != nil || len(p.Items) != expect || p.Next == "" {
			t.Errorf("size %d: %d items, next %q, %v, want %d and a next", size, len(p.Items), p.Next, err, expect)
		}
	}
}

// A page is bounded in bytes too, and the list goes on after it.
func TestListBoundsItsBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := jsontext.Value(`{"x":"` + strings.Repeat("x", 250<<10) + `"}`)
	for i := range 40 {
		e := newEvent(fmt.Sprint("e", i))
		e.Metadata = large
		b.Accept(t, e)
	}
	for name, f := range map[string]history.Filter{
		"of a company": {Company: &company, Size: 100},
		"of all":       {Size: 100},
		"of a type":    {Company: &company, Types: []string{newEvent("").Type}, Size: 100},
	} {
		seen := 0
		for calls := 0; calls == 0 || f.Cursor != ""; calls++ {
			p, err := b.Reader.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(p.Items); n == 0 || n*len(large) > history.PageBytes {
				t.Errorf("%s: %d events on a page", name, n)
			}
			seen += len(p.Items)
			f.Cursor = p.Next
		}
		if seen != 40 {
			t.Errorf("%s: %d events, want 40", name, seen)
		}
	}
}

// The last page has no Next, and no empty page follows it.
func TestListEndsExactly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t, 40, always)
	for _, f := range []history.Filter{{Company: &company}, {}} {
		one, _ := b.Reader.List(t.Context(), f)
		f.Cursor = one.Next
		two, err := b.Reader.List(t.Context(), f)
		if err != nil || len(two.Items) != 20 || two.Next != "" {
			t.Errorf("second of two pages: %d items, next %q, %v", len(two.Items), two.Next, err)
		}
	}
}

func TestListAfterItsCursorWasTrimmed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, batchOf(company, "e", 60)...)
	f := history.Filter{Company: &company}
	one, err := b.Reader.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	f.Cursor = one.Next
	b.Redis.ZRemRangeByRank(t.Context(), layout.IndexKey(company), 0, 40) // the cursor's id and all older
	two, err := b.Reader.List(t.Context(), f)
	if err != nil || len(two.Items) != 0 || two.Next != "" {
		t.Errorf("after the trim: %d items, next %q, %v, want the end", len(two.Items), two.Next, err)
	}
}

func TestBadCursors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t, 40, always)
	mine := history.Filter{Company: &company}
	p, err := b.Reader.List(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	other := uuid.UUID{9}
	cases := map[string]history.Filter{
		"another company":     {Company: &other, Cursor: p.Next},
		"every company":       {Cursor: p.Next},
		"another type":        {Company: &company, Types: []string{"A"}, Cursor: p.Next},
		"another time":        {Company: &company, From: &noon, Cursor: p.Next},
		"not base64":          {Company: &company, Cursor: "!"},
		"short":               {Company: &company, Cursor: "AAAA"},
		"longer":              {Company: &company, Cursor: p.Next + "AAAA"},
		"padded":              {Company: &company, Cursor: p.Next + "="},
		"with a line break":   {Company: &company, Cursor: p.Next[:4] + "\n" + p.Next[4:]},
		"a place, not a list": {Company: &company, Cursor: "1700000000000:e1"},
	}
	for i := range p.Next {
		changed := []byte(p.Next)
		changed[i] = "AB"[min(1, changed[i]&1^1)]
		if string(changed) != p.Next {
			cases[fmt.Sprintf("character %d changed", i)] = history.Filter{Company: &company, Cursor: string(changed)}
		}
	}
	for name, f := range cases {
		if got, err := b.Reader.List(t.Context(), f); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("%s: %d items, %v, want ErrBad", name, len(got.Items), err)
		}
	}
}

func TestListOfAClosedRange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t, 10, always)
	early, late := noon.Add(-time.Hour), noon.Add(time.Hour)
	p, err := b.Reader.List(t.Context(), history.Filter{Company: &company, From: &late, To: &early})
	if err != nil || len(p.Items) != 0 || p.Next != "" {
		t.Errorf("from after to: %+v, %v", p, err)
	}
}

func TestWalkAgainstModel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(rt *rapid.T) {
		b.Redis.FlushDB(t.Context()) // this test's own database
		model := b.populate(t, rt)
		f := drawFilter(rt, model)
		f.Company, f.Types = &model[0].company, nil
		if f.From == nil {
			f.From = &noon
		}
		expect := slices.Collect(filtered(model, f))
		slices.SortFunc(expect, func(a, b item) int { return -newestFirst(a, b) })

		var got []string
		for after, steps := "", 0; ; steps++ {
			ids, next, err := b.Reader.Walk(t.Context(), *f.Company, *f.From, *f.To, after, f.Size)
			if err != nil || len(ids) > f.Size || steps > len(model) {
				rt.Fatalf("step %d: %v, %v", steps, ids, err)
			}
			got = append(got, ids...)
			if after = next; next == "" {
				break
			}
		}
		ids := make([]string, 0, len(expect))
		for _, i := range expect {
			ids = append(ids, i.id)
		}
		if !slices.Equal(got, ids) {
			rt.Fatalf("walk of %+v\n got %v\nwant %v", f, got, ids)
		}
	})
}

// Retention removes the oldest events during a walk: the walk continues with the events that
// are left, each once, even if its own position is gone.
func TestWalkWhileRetentionTrims(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		trim func(*bundle)
		left int // first of the ids after the first step
	}{
		"cursor trimmed, its millisecond not": {func(b *bundle) {
			b.Redis.ZRemRangeByRank(t.Context(), layout.IndexKey(company), 0, 9)
		}, 10},
		"more than a step past retention": {func(b *bundle) {
			b.Clock.Store(noon.Add(retention+10*time.Minute).UnixMilli() - 2)
		}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.fill(t, 40, always)
			first, next := b.walk(t, "", 10)
			want(t, "first step", first, ids(0, 10)...)
			tc.trim(b)
			var rest []string
			for next != "" {
				var step []string
				step, next = b.walk(t, next, 5)
				rest = append(rest, step...)
			}
			want(t, "rest", rest, ids(tc.left, 40)...)
		})
	}
}

func (b *bundle) walk(t *testing.T, after string, n int) (ids []string, next string) {
	t.Helper()
	ids, next, err := b.Reader.Walk(t.Context(), company, noon.Add(-time.Hour), noon.Add(time.Hour), after, n)
	if err != nil {
		t.Fatal(err)
	}
	return ids, next
}

// ids are those that fill made, from first to before end.
func ids(first, end int) []string {
	var all []string
	for i := first; i < end; i++ {
		all = append(all, fmt.Sprintf("e%06d", i))
	}
	return all
}

func TestWalkRefusesBadCursors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, after := range []string{":", "1", "1:", "x:e", "-1:e", "1:a.b", "99999999999999999999:e"} {
		if _, _, err := b.Reader.Walk(t.Context(), company, noon, noon, after, 10); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("walk after %q: %v, want ErrBad", after, err)
		}
	}
}

func TestReadsOfAnUnavailableRedis(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_ = b.Redis.Close()
	_, getErr := b.Reader.Get(t.Context(), events.Ref{Company: company, ID: "e"})
	_, listErr := b.Reader.List(t.Context(), history.Filter{Company: &company})
	_, allErr := b.Reader.List(t.Context(), history.Filter{})
	_, _, walkErr := b.Reader.Walk(t.Context(), company, noon, noon, "", 1)
	for what, err := range map[string]error{"get": getErr, "list": listErr, "list all": allErr, "walk": walkErr} {
		if !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", what, err)
		}
	}
}

func TestEventsAreReadByTheMegabyte(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := `{"note":"` + strings.Repeat("n", 200<<10) + `"}`
	var refs []events.Ref
	for i := range 12 {
		e := newEvent("evt_" + strconv.Itoa(i))
		if i < 11 {
			e.Metadata = jsontext.Value(large)
		}
		b.Accept(t, e)
		refs = append(refs, events.Ref{Company: company, ID: e.ID})
	}
	refs = append(refs, events.Ref{Company: company, ID: "gone"})
	batches, err := b.Reader.Batches(t.Context(), refs)
	if err != nil || len(batches) != 3 || len(batches[0]) != 5 || len(batches[1]) != 5 || !slices.Equal(slices.Concat(batches...), refs) {
		t.Errorf("%v, %v", batches, err)
	}
	if batches, err := b.Reader.Batches(t.Context(), nil); err != nil || len(batches) != 0 {
		t.Errorf("of none: %v, %v", batches, err)
	}
}

// A list continues at its position, also when the event at that position was compacted
// meanwhile.
func TestListContinuesAtACompactedEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, batchOf(company, "e", 40)...) // all in one millisecond
	f := history.Filter{Company: &company, Size: 10}
	one, err := b.Reader.List(t.Context(), f)
	if err != nil || len(one.Items) != 10 {
		t.Fatalf("%d events, %v", len(one.Items), err)
	}
	b.Redis.ZRem(t.Context(), layout.IndexKey(company), one.Items[9].ID)
	f.Cursor = one.Next
	two, err := b.Reader.List(t.Context(), f)
	if err != nil || len(two.Items) != 10 || two.Items[0].ID != "e0029" {
		t.Errorf("goes on with %+v, %v", two.Items, err)
	}
}

// A deep page costs what a shallow one costs.
func BenchmarkListPage(b *testing.B) {
	const total = 200_000
	bundle := setup(b)
	bundle.fill(b, total, func(i int) bool { return i%1000 < 50 })
	for _, depth := range []int{0, total / 2, total - 1000} {
		b.Run(fmt.Sprintf("after %d", depth), func(b *testing.B) {
			to := noon.Add(-time.Duration(depth/7) * time.Millisecond)
			first, err := bundle.Reader.List(b.Context(), history.Filter{Company: &company, To: &to})
			if err != nil {
				b.Fatal(err)
			}
			f := history.Filter{Company: &company, To: &to, Cursor: first.Next}
			for b.Loop() {
				if _, err := bundle.Reader.List(b.Context(), f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
