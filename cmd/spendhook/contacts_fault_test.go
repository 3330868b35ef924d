//go:build faults

package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
	"spendhook/internal/smtptest"
)

// contactMails are the subjects of mails to contacts, in the order of a subscriber's trouble.
var contactMails = []string{
	"Please confirm", "Webhook endpoint will be disabled", "Webhook endpoint was disabled", "Webhook endpoint works again",
}

const watchedSubscribers = 5

// contactTrial is a company whose subscribers have a contact each.
type contactTrial struct {
	*chaosCompany

	mails   *smtptest.Server
	balance *balancer
	failing atomic.Bool // the receiver of all its subscribers
	stopped []time.Time // when the replicas were killed, and started again, in turn; written by killAndRestart
	kills   int         // guarded by mu
}

// Both replicas on a Cluster are killed each time that the SMTP server has taken the first mail of a kind and not answered
// yet. Each contact is told everything, in order, and a kill repeats at most one mail. Meanwhile the canary emits one event
// in each minute, and every one arrives.
func TestContactsAndCanaryUnderKills(t *testing.T) {
	t.Parallel()
	w := startContactTrial(t)
	ctx, end := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Go(func() { w.killAndRestart(ctx) })
	ids := w.subscribe()
	w.await("each contact is asked", contactMails[0])
	for _, m := range w.mails.Messages() {
		w.confirm(string(m.Raw))
	}
	w.failing.Store(true)
	background.Go(func() { w.emitSteadily(ctx) })
	w.await("each contact hears that its subscriber was disabled", contactMails[2])
	w.failing.Store(false)
	for _, id := range ids {
		if status, answer := w.call(t.Context(), http.MethodPatch, "/api/v1/subscribers/"+id.String(), `{"enabled":true}`, ""); status != http.StatusOK {
			t.Fatalf("enable: %d %s", status, answer)
		}
	}
	w.await("each contact hears that its subscriber works again", contactMails[3])
	end()
	background.Wait()
	w.account()
	w.accountForCanary()
	for _, d := range w.daemons {
		d.stop(t)
	}
}

func startContactTrial(t *testing.T) *contactTrial {
	t.Helper()
	servers := redistest.Cluster(t, 3)
	w := &contactTrial{chaosCompany: &chaosCompany{chaos: &chaos{t: t}, id: uuid.UUID{15: 1, 6: 0x40, 8: 0x80}}, mails: smtptest.New(t), balance: newBalancer(t)}
	settings := "dev: true\n" + canarySettings + "public_url: " + w.balance.URL + "\n" + sharedKey + smtpSettings(t, w.mails, t.TempDir()) +
		"delivery: {schedule: [1s, 1s, 1s], disable_after: 1m, failing_after: 1}\n"
	for range 2 {
		h := newInstallation(t, clusterURL(servers), settings)
		d := h.startChild(t)
		w.installations, w.daemons = append(w.installations, h), append(w.daemons, d)
		w.tokens = append(w.tokens, d.as(t, h, w.id).token)
	}
	w.balance.daemons.Store(new(slices.Clone(w.daemons)))
	return w
}

// killAndRestart kills the replicas at the first mail of each kind, and starts them again.
func (w *contactTrial) killAndRestart(ctx context.Context) {
	killed, seen := make(chan struct{}, len(contactMails)), map[string]bool{}
	w.mails.OnMessage(func(m smtptest.Message) {
		kind, _, _ := strings.Cut(m.Header.Get("Subject"), ":")
		w.mu.Lock()
		defer w.mu.Unlock()
		if seen[kind] || !slices.ContainsFunc(contactMails, func(known string) bool { return strings.HasPrefix(kind, known) }) {
			return
		}
		seen[kind] = true
		w.kills++
		for _, d := range w.daemons {
			d.signal(syscall.SIGKILL)
			<-d.done
		}
		killed <- struct{}{}
	})
	for {
		select {
		case <-killed:
			w.stopped = append(w.stopped, time.Now())
			w.restart(syscall.SIGKILL, 0, 1) //nolint:contextcheck // replicas outlive ctx
			w.stopped = append(w.stopped, time.Now())
			w.balance.daemons.Store(new(slices.Clone(w.daemons)))
		case <-ctx.Done():
			return
		}
	}
}

func (w *contactTrial) subscribe() (ids []uuid.UUID) {
	w.t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if w.failing.Load() {
			rw.WriteHeader(http.StatusInternalServerError)
		}
	}))
	w.t.Cleanup(receiver.Close)
	for n := range watchedSubscribers {
		body := fmt.Sprintf(`{"name":"watched","callbackUrl":"%s/%d","events":["PAYMENT_PAID"],"contacts":["ops%d@example.com"]}`, receiver.URL, n, n)
		status, answer := w.call(w.t.Context(), http.MethodPost, "/api/v1/subscribers", body, uuid.NewString())
		var created gen.SubscriberWithSecret
		if err := json.Unmarshal([]byte(answer), &created); err != nil || status != http.StatusCreated {
			w.t.Fatalf("subscribe: %d %s", status, answer)
		}
		ids = append(ids, created.UUID)
	}
	return ids
}

// told returns the kinds of mails that each contact got, as indices of contactMails, oldest first.
func (w *contactTrial) told() map[string][]int {
	all := map[string][]int{}
	for _, m := range w.mails.Messages() {
		kind := slices.IndexFunc(contactMails, func(subject string) bool { return strings.HasPrefix(m.Header.Get("Subject"), subject) })
		all[m.To] = append(all[m.To], kind)
	}
	return all
}

// await waits until each contact has a mail.
func (w *contactTrial) await(what, subject string) {
	w.t.Helper()
	kind := slices.Index(contactMails, subject)
	eventually(w.t, deliveryPatience, what, func() bool {
		told := w.told()
		return len(told) == watchedSubscribers && !slices.ContainsFunc(slices.Collect(maps.Values(told)), func(kinds []int) bool { return !slices.Contains(kinds, kind) })
	})
}

// confirm does what a person does with a mail, until a replica answers.
func (w *contactTrial) confirm(mail string) {
	w.t.Helper()
	link := linkToConfirm(mail)
	eventually(w.t, deliveryPatience, "a contact confirms", func() bool {
		resp, err := http.Post(link, "application/x-www-form-urlencoded", http.NoBody)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (w *contactTrial) emitSteadily(ctx context.Context) {
	for n := 0; pause.For(ctx, 500*time.Millisecond); n++ {
		body := fmt.Sprintf(`{"id":"evt_%d","event":"PAYMENT_PAID","timestamp":%d}`, n, time.Now().UnixMilli())
		if status, answer := w.call(ctx, http.MethodPost, "/api/v1/events", body, ""); status != http.StatusAccepted && status != http.StatusOK {
			w.t.Errorf("emit: %d %s", status, answer)
		}
	}
}

// account looks at the order of the mails, and at the repeats.
func (w *contactTrial) account() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	repeats := 0
	for contact, kinds := range w.told() {
		if !slices.IsSorted(kinds) {
			w.t.Errorf("%s got its mails in the order %v", contact, kinds)
		}
		repeats += len(kinds) - len(slices.Compact(slices.Clone(kinds)))
	}
	w.t.Logf("%d kills of both replicas: %d mails, %d repeats", w.kills, len(w.mails.Messages()), repeats)
	if w.kills < 3 || repeats > w.kills {
		w.t.Errorf("%d repeats after %d kills", repeats, w.kills)
	}
}

// stoppedDuring reports whether no replica ran for some of the time.
func (w *contactTrial) stoppedDuring(from, to time.Time) bool {
	for i := 0; i < len(w.stopped); i += 2 {
		if w.stopped[i].Before(to) && w.stopped[i+1].After(from) {
			return true
		}
	}
	return false
}

// accountForCanary looks for one event in each minute, and its delivery.
func (w *contactTrial) accountForCanary() {
	w.t.Helper()
	d := w.daemons[0].as(w.t, w.installations[0], uuid.MustParse(canaryCompany))
	var list gen.EventList
	d.read(w.t, "/api/v1/events?size=100", &list)
	var minutes []time.Time
	for _, e := range list.Content {
		minutes = append(minutes, e.Timestamp.Truncate(time.Minute))
	}
	slices.SortFunc(minutes, time.Time.Compare)
	for i := 1; i < len(minutes); i++ {
		if apart := minutes[i].Sub(minutes[i-1]); apart == 0 || apart > time.Minute && !w.stoppedDuring(minutes[i-1].Add(time.Minute), minutes[i]) {
			w.t.Errorf("no event of the canary, or two, between %s and %s", minutes[i-1], minutes[i])
		}
	}
	eventually(w.t, deliveryPatience, "each arrives", func() bool { return len(d.deliveries(w.t, "DELIVERED")) >= len(minutes) })
	w.t.Logf("%d events of the canary, each delivered", len(minutes))
	if len(minutes) < 2 {
		w.t.Error("too few events of the canary")
	}
}
