package dispatcher

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// links are webhook-sequence and webhook-previous of what was received, in order of arrival.
func (rc *inbox) links(id string) (all []string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, g := range rc.got {
		if g.header.Get(signature.HeaderID) == id {
			all = append(all, g.header.Get(signature.HeaderSequence)+"<"+g.header.Get(signature.HeaderPrevious))
		}
	}
	return all
}

// Each delivery names the event before it that its subscriber matched, on every attempt and replay. The first one after a
// change of the subscriber or of the owner names none, nor does that of a new subscriber with the same URL.
func TestDeliveriesNameTheEventBefore(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]func(*testing.T) redis.UniversalClient{
		"one server": func(t *testing.T) redis.UniversalClient { t.Helper(); return redistest.New(t) },
		"a cluster": func(t *testing.T) redis.UniversalClient {
			t.Helper()
			return redistest.Cluster(t, 3)[0].ClusterClient()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namesTheEventBefore(t, client(t))
		})
	}
}

func namesTheEventBefore(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	h := build(t, client, nil)
	failing := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	all, payments := receive(t, nil), h.subscribe(failing.URL)
	everything := h.subscribeTo(h.company, all.URL, "*")
	h.start()
	var ids []string
	for _, kind := range []string{"PAYMENT_PAID", "CARD_REQUEST_FAILED", "CARD_REQUEST_FAILED", "PAYMENT_PAID"} {
		ids = append(ids, h.emitType(kind, 1)...)
		h.reachAll(ids, everything, delivery.StatusDelivered) // two commits may be matched in any order
	}
	h.reachAll([]string{ids[0], ids[3]}, payments, delivery.StatusDelivered)
	h.update(everything, subscribers.Settings{Filter: new("true")})
	ids = append(ids, h.emit(2)...)
	h.reachAll(ids[4:], everything, delivery.StatusDelivered)
	h.reachAll(ids[4:], payments, delivery.StatusDelivered)
	if named, unknown := testutil.ToFloat64(h.metrics.linked), testutil.ToFloat64(h.metrics.unlinked); named == 0 || unknown == 0 || named+unknown < 10 {
		t.Errorf("%v named and %v unknown of 10 are counted", named, unknown)
	}
	named := 0
	check := func(rc *inbox, event int, want string) {
		got := slices.Compact(rc.links(ids[event-1]))
		if len(got) == 1 && got[0] == want {
			named++
		} else if number, _, _ := strings.Cut(want, "<"); !slices.Equal(got, []string{number + "<"}) { // it lost and got back the partition
			t.Errorf("event %d: %v, want %s", event, got, want)
		}
	}
	for i, want := range []string{"1<", "2<1", "3<2", "4<3", "5<", "6<5"} {
		check(all, i+1, want)
	}
	for event, want := range map[int]string{1: "1<", 4: "4<1", 5: "5<4", 6: "6<5"} {
		check(failing, event, want)
	}
	if named < 5 { // three of them are to name none
		t.Errorf("only %d of 10 deliveries say what they are to say", named)
	}
	if failing.count() != 7 {
		t.Errorf("%d attempts of 4 payments of which 3 have failed", failing.count())
	}

	if _, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: ids[3]}, nil); err != nil {
		t.Fatal(err)
	}
	replayed := h.becomes(ids[3], everything, "DELIVERED twice", func(d delivery.Delivery) bool { return d.Count == 2 })
	got := all.links(ids[3])
	if len(got) != 2 || got[0] != got[1] {
		t.Errorf("the replay: %v", got)
	}
	_, before, _ := strings.Cut(got[0], "<")
	if shown := replayed.Attempts[1].Headers(ids[3]); shown[signature.HeaderPrevious] != before {
		t.Errorf("the log of attempts: %v", shown)
	}
	sent, err := h.inspector.Sent(t.Context(), h.company, ids[3]+"."+everything.UUID.String())
	if err != nil || before != "" && strconv.FormatInt(sent.Previous, 10) != before {
		t.Errorf("what would be sent: %+v, %v", sent, err)
	}

	h.stop(patience)
	next := build(t, client, nil)
	next.company, next.seq = h.company, h.seq
	next.start()
	ids = append(ids, next.emit(2)...)
	next.reachAll(ids[6:], everything, delivery.StatusDelivered)
	check(all, 7, "7<")
	check(all, 8, "8<7")

	if err := next.service.Delete(t.Context(), h.company, everything.UUID); err != nil {
		t.Fatal(err)
	}
	everything = next.subscribeTo(h.company, all.URL, "*")
	for range 2 {
		ids = append(ids, next.emit(1)...)
		next.reachAll(ids[8:], everything, delivery.StatusDelivered)
	}
	check(all, 9, "9<")
	check(all, 10, "10<9")
}
