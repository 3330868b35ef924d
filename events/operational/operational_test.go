package operational_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const retention = 7 * 24 * time.Hour

// changing stands for a script that makes a change and writes its notice.
var changing = queues.Script(operational.Lua()+"return notice(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])", true)

// notifier writes notices of one company, as scripts do.
type notifier struct {
	t       *testing.T
	client  redis.UniversalClient
	store   *operational.Store
	reader  *history.Reader
	company uuid.UUID
	sub     uuid.UUID
	kind    string // of the notices
	now     time.Time
	version int
}

func newNotifier(t *testing.T, operations uuid.UUID) *notifier {
	t.Helper()
	client := redistest.New(t)
	now := time.Now().UTC().Truncate(time.Millisecond)
	return &notifier{
		t: t, client: client, company: uuid.New(), sub: uuid.New(), kind: eventtype.DeliveryDead, now: now,
		store: operational.New(operational.Options{
			Client: client, Retention: retention, Operations: operations, Now: func() time.Time { return now },
		}),
		reader: history.New(history.Options{Client: client, Retention: retention, Now: func() time.Time { return now }}),
	}
}

// lists makes the company have a subscriber that lists types.
func (b *notifier) lists(types ...string) {
	b.t.Helper()
	b.version++
	raw := fmt.Sprintf(`{"name":"n","events":["%s"],"enabled":false}`, strings.Join(types, `","`))
	key := partition.Key(b.company, "s:"+b.company.String())
	if err := b.client.HSet(b.t.Context(), key, uuid.NewString(), raw, "v", b.version).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// notify writes a notice, and reports whether a wake-up is needed.
func (b *notifier) notify(id, about string) bool {
	b.t.Helper()
	text, err := b.store.Encode(operational.Event{
		ID: id, Type: b.kind, Company: b.company, About: about, At: b.now,
		Metadata: map[string]any{"eventId": about},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	p := partition.Of(b.company)
	wake, err := changing.Run(b.t.Context(), b.client, queues.Keys(p), partition.Prefix(p),
		b.company.String(), b.sub.String(), text, b.now.UnixMilli()).Int()
	if err != nil {
		b.t.Fatal(err)
	}
	return wake == 1
}

// keys lists what is kept of the company, without its subscribers.
func (b *notifier) keys() []string {
	b.t.Helper()
	all, err := b.client.Keys(b.t.Context(), partition.Key(b.company, "*")).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, k := range all {
		if k != partition.Key(b.company, "s:"+b.company.String()) {
			out = append(out, k)
		}
	}
	return out
}

func (b *notifier) list() []events.Stored {
	b.t.Helper()
	page, err := b.reader.List(b.t.Context(), history.Filter{Company: &b.company, Size: 100})
	if err != nil {
		b.t.Fatal(err)
	}
	return page.Items
}

func TestNoticeWithoutSubscriberIsNotWritten(t *testing.T) {
	t.Parallel()
	b := newNotifier(t, uuid.Nil)
	if b.notify("n1", "e1"); len(b.keys()) != 0 {
		t.Errorf("a company without subscribers has %v", b.keys())
	}
	b.lists("PAYMENT_PAID", eventtype.SubscriberFailing)
	if b.notify("n1", "e1"); len(b.keys()) != 1 { // what its subscribers list
		t.Errorf("a company that does not list it has %v", b.keys())
	}
	b.lists(eventtype.DeliveryDead)
	if !b.notify("n1", "e1") || len(b.list()) != 1 {
		t.Error("a notice that a new subscriber lists is not written")
	}
}

// A notice is stored exactly like an emitted event.
func TestNoticeIsAcceptedOnceLikeAnyEvent(t *testing.T) {
	t.Parallel()
	b := newNotifier(t, uuid.Nil)
	b.lists(eventtype.DeliveryDead)
	publisher := publish.New(publish.Options{
		Client: b.client, Retention: retention, Wake: func(context.Context, []int) {}, Now: func() time.Time { return b.now },
	})
	t.Cleanup(publisher.Close)
	emitted := events.Event{ID: events.OwnPrefix + "emitted", CompanyUUID: b.company, Type: "PAYMENT_PAID", Timestamp: b.now}
	if _, err := publisher.Accept(t.Context(), []events.Event{emitted}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.notify("n1", "e1")
	}
	b.notify("emitted", "e1") // an id that is known
	got, err := b.reader.Get(t.Context(), events.Ref{Company: b.company, ID: events.OwnPrefix + "n1"})
	if err != nil || got.State != events.Ready || got.Sequence != 2 || !got.AcceptedAt.Equal(b.now) || got.Type != eventtype.DeliveryDead {
		t.Fatalf("%+v, %v", got, err)
	}
	if want := `{"companyUuid":"` + b.company.String() + `","eventId":"e1"}`; string(got.Metadata) != want {
		t.Errorf("metadata %s, want %s", got.Metadata, want)
	}
	results, err := publisher.Accept(t.Context(), []events.Event{got.Event})
	if err != nil || results[0].Status != publish.Duplicate {
		t.Errorf("sent again it is %+v, %v", results, err)
	}
	queue := b.client.ZRange(t.Context(), partition.Key(b.company, "ei:"+b.company.String()), 0, -1).Val()
	counts := b.client.HMGet(t.Context(), partition.Key(b.company, "c:"+b.company.String()), "pending", "seq").Val()
	pending := b.client.Get(t.Context(), partition.Prefix(partition.Of(b.company))+"pending").Val()
	if fmt.Sprint(queue) != "[spendhook-emitted spendhook-n1]" || fmt.Sprint(counts) != "[2 2]" || pending != "2" || len(b.list()) != 2 {
		t.Errorf("ready %v, counts %v, pending %s, listed %d", queue, counts, pending, len(b.list()))
	}
	if ttl := b.client.TTL(t.Context(), partition.Key(b.company, "ei:"+b.company.String())).Val(); ttl < 7*24*time.Hour {
		t.Errorf("the index expires in %s", ttl)
	}
}

func TestTooManyNoticesAreSummarised(t *testing.T) {
	t.Parallel()
	operations := uuid.New()
	b := newNotifier(t, operations)
	b.lists(eventtype.DeliveryDead)
	for i := range 100 {
		b.notify("n"+strconv.Itoa(i), "e"+strconv.Itoa(i))
	}
	if n := len(b.list()); n != 60 {
		t.Errorf("%d were written one by one, want 60", n)
	}
	all, err := b.store.Suppressed(t.Context(), b.company)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	s := all[0]
	wait := time.Until(s.Due)
	if s.Count != 40 || s.First != "e60" || s.Last != "e99" || s.Subscriber != b.sub || s.Type != eventtype.DeliveryDead || wait < 50*time.Second || wait > time.Minute {
		t.Errorf("%+v, due in %s", s, wait)
	}
	job := "j:" + b.company.String() + "/" + operational.SummariseJob.String()
	if due := b.client.ZScore(t.Context(), queues.Keys(partition.Of(b.company))[0], job).Val(); int64(due) < s.Due.UnixMilli() || int64(due) > s.Due.Add(time.Minute).UnixMilli() { // the script reads the time twice
		t.Errorf("the job is due at %.0f, want %d or a little later", due, s.Due.UnixMilli())
	}
	b.notify("n100", "e100")
	b.summarise(s) // more were suppressed since: it is read again
	if n := len(b.list()); n != 60 {
		t.Errorf("an outdated summary was written, %d events", n)
	}
	all, _ = b.store.Suppressed(t.Context(), b.company)
	b.summarise(all[0])
	b.summarise(all[0])
	if n := len(b.list()); n != 61 {
		t.Errorf("%d events with the summary, want 61", n)
	}
	want := `{"companyUuid":"` + b.company.String() + `","firstEventId":"e60","lastEventId":"e100","subscriberUuid":"` + b.sub.String() + `","suppressed":41}`
	found := 0
	for _, e := range b.list() {
		if string(e.Metadata) == want {
			found++
		}
	}
	out, _, err := b.store.Outbox(t.Context(), b.company)
	if err != nil || found != 1 || len(out) != 61 {
		t.Errorf("%d summaries, %d in the outbox, %v", found, len(out), err)
	}
	for _, o := range out {
		if o.Err != nil || o.Event.CompanyUUID != operations {
			t.Errorf("outgoing %+v", o)
		}
	}
}

// A damaged count of suppressed notices is replaced by the next notice.
func TestDamagedCountIsReplaced(t *testing.T) {
	t.Parallel()
	b := newNotifier(t, uuid.Nil)
	b.lists(eventtype.DeliveryDead)
	key := partition.Key(b.company, "ns:"+b.company.String())
	if err := b.client.HSet(t.Context(), key, "c/"+b.sub.String()+"/"+eventtype.DeliveryDead, "damaged").Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 62 {
		b.notify("n"+strconv.Itoa(i), "e"+strconv.Itoa(i))
	}
	all, err := b.store.Suppressed(t.Context(), b.company)
	if err != nil || len(all) != 1 || all[0].Err != nil || all[0].Count != 2 || all[0].First != "e60" || all[0].Last != "e61" {
		t.Errorf("%+v, %v", all, err)
	}
}

// A company with many failing receivers gets a limited number of notices, then summaries. Notices of
// one type do not displace those of another.
func TestNoticesOfACompanyAreBounded(t *testing.T) {
	t.Parallel()
	b := newNotifier(t, uuid.Nil)
	b.lists(eventtype.DeliveryDead, eventtype.SubscriberDisabled)
	queued := func() int64 {
		return b.client.ZCard(t.Context(), partition.Key(b.company, "ei:"+b.company.String())).Val()
	}
	for s := range 8 {
		b.sub = uuid.New()
		for i := range 50 {
			b.notify(fmt.Sprintf("n%d-%d", s, i), "e"+strconv.Itoa(i))
		}
	}
	all, err := b.store.Suppressed(t.Context(), b.company)
	if err != nil || queued() != 300 || len(all) != 2 || all[0].Count != 50 || all[1].Count != 50 {
		t.Errorf("%d written, suppressed %+v, %v", queued(), all, err)
	}
	for _, s := range all {
		b.summarise(s)
	}
	b.kind = eventtype.SubscriberDisabled
	if b.notify("disabled", "e"); queued() != 303 {
		t.Errorf("%d written with two summaries and a notice of another type, want 303", queued())
	}
}

func (b *notifier) summarise(s operational.Suppressed) {
	b.t.Helper()
	if _, _, err := b.store.Summarise(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
}

// While the operations company is unreachable, the outbox is bounded. Further notices are
// summarised, and the company's own notices are not delayed.
func TestTheOutboxIsBounded(t *testing.T) {
	t.Parallel()
	b := newNotifier(t, uuid.New())
	b.lists(eventtype.DeliveryDead)
	for s := range 30 {
		b.sub = uuid.New()
		for i := range 10 {
			b.notify(fmt.Sprintf("n%d-%d", s, i), fmt.Sprintf("e%d-%d", s, i))
		}
	}
	queued := b.client.ZCard(t.Context(), partition.Key(b.company, "ei:"+b.company.String())).Val()
	waiting := b.client.ZCard(t.Context(), partition.Key(b.company, "outbox:"+b.company.String())).Val()
	all, err := b.store.Suppressed(t.Context(), b.company)
	var suppressed int64
	for _, s := range all {
		suppressed += s.Count
	}
	if err != nil || queued != 300 || waiting != 256 || waiting+suppressed != 300 {
		t.Errorf("%d written, %d in the outbox, %d suppressed, %v", queued, waiting, suppressed, err)
	}
	b.summarise(all[0]) // the outbox is still full: the notices stay suppressed
	again, err := b.store.Suppressed(t.Context(), b.company)
	if err != nil || len(again) != len(all) {
		t.Errorf("%d summaries are open, want %d, %v", len(again), len(all), err)
	}
	for more := true; more; {
		var page []operational.Outgoing
		if page, more, err = b.store.Outbox(t.Context(), b.company); err != nil {
			t.Fatal(err)
		}
		if err := b.store.Sent(t.Context(), b.company, page); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range again {
		b.summarise(s)
	}
	page, _, err := b.store.Outbox(t.Context(), b.company)
	if err != nil || len(page) != len(again) {
		t.Errorf("%d summaries in the outbox, want %d, %v", len(page), len(again), err)
	}
	if queued := b.client.ZCard(t.Context(), partition.Key(b.company, "ei:"+b.company.String())).Val(); queued != 300 {
		t.Errorf("the company has %d notices", queued)
	}
}
