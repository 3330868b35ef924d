package contacts_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/audit"
	"spendhook/contacts"
	"spendhook/dispatcher/webhook"
	"spendhook/internal/egress"
	"spendhook/internal/partition"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/internal/smtptest"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	ops          = "ops@example.com"
	publicURL    = "https://hooks.example.com"
	disableAfter = 5 * 24 * time.Hour
)

// chat is a Slack-compatible server, which keeps the texts that it gets.
type chat struct {
	*httptest.Server

	mu     sync.Mutex
	status int
	texts  []string
}

func newChat(t *testing.T) *chat {
	t.Helper()
	c := &chat{status: http.StatusOK}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Text string `json:"text"`
		}
		err := json.UnmarshalRead(r.Body, &in)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && r.Header.Get("Content-Type") == "application/json" && c.status == http.StatusOK {
			c.texts = append(c.texts, in.Text)
		}
		w.Header().Set("Location", "https://example.com/")
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *chat) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

func (c *chat) got() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.texts)
}

// bundle is replicas that tell contacts, on one Redis, with an SMTP server and a chat.
type bundle struct {
	*subscriberstest.Bundle

	t        *testing.T
	smtp     *smtptest.Server
	chat     *chat
	health   *health.Store
	replicas []*contacts.Notifier
	metrics  []*prometheus.Registry
	owner    int        // the replica that owns all partitions
	looks    int        // after so many looks no replica owns any; 0: never
	mu       sync.Mutex // guards looks and audited in a round, which has several goroutines
	audited  []audit.Entry
	sub      subscribers.Subscriber
}

type setting struct {
	replicas, hourly int
	guard            egress.Options
	name, base       string
	cluster          bool
}

func (b *bundle) audit(e audit.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.audited = append(b.audited, e)
}

// setup returns a bundle with a subscriber that has contacts; {chat} stands for the URL of the chat.
func setup(t *testing.T, s setting, all ...string) *bundle {
	t.Helper()
	client := redistest.New(t)
	if s.cluster {
		client = redistest.Cluster(t, 2)[0].ClusterClient()
	}
	client.AddHook(redistest.Repeats())
	b := &bundle{
		Bundle: subscriberstest.On(client, subscribers.StoreOptions{Mail: true}),
		t:      t, smtp: smtptest.New(t), chat: newChat(t),
	}
	b.health = health.New(health.Options{Client: client, Now: b.Now})
	roots := x509.NewCertPool()
	roots.AddCert(b.chat.Certificate())
	sender := webhook.NewSender(webhook.SenderOptions{
		Guard: egress.New(s.guard), Version: "test", Timeout: 10 * time.Second, ConnectTimeout: 5 * time.Second,
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	})
	t.Cleanup(sender.Close)
	mailer, err := contacts.NewMailer(contacts.SMTP{
		Host: smtptest.Host, Port: b.smtp.Port, Username: smtptest.Username, Password: smtptest.Password,
		From: "Spendhook <hooks@example.com>", Security: "starttls", TLS: &tls.Config{RootCAs: b.smtp.Roots, MinVersion: tls.VersionTLS12},
	})
	b.noErr(err)
	limiter := ratelimit.New(nil, b.Now) // Redis has no clock that a test can move
	for i := range max(1, s.replicas) {
		registry := prometheus.NewRegistry()
		b.metrics = append(b.metrics, registry)
		b.replicas = append(b.replicas, contacts.New(contacts.Options{
			Client: client, Keyring: sealtest.Keyring(), Registry: b.Registry(), Health: b.health, Limiter: limiter,
			Mailer: mailer, Send: sender.Send, PublicURL: cmp.Or(s.base, publicURL+"/"), Hourly: max(s.hourly, 2), Confirms: 20, Registerer: registry, Now: b.Now,
			FailsFor: func(retries time.Duration) time.Duration { return max(disableAfter, retries) },
			Audit:    b.audit,
			Owned: func() (owned []int) {
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.looks == 1 {
					return nil
				}
				b.looks = max(0, b.looks-1)
				for p := range partition.Count {
					if i == b.owner {
						owned = append(owned, p)
					}
				}
				return owned
			},
		}))
	}
	in := b.Settings("https://example.com/a")
	in.Contacts = b.contacts(all...)
	if s.name != "" {
		in.Name = &s.name
	}
	b.sub, err = b.Store.Create(t.Context(), b.Company, in)
	b.noErr(err)
	return b
}

// usual is the setting of most tests.
func usual() setting {
	return setting{hourly: 100, guard: egress.Options{AllowLoopback: true}}
}

func (b *bundle) noErr(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) contacts(all ...string) *[]secret.Text {
	list := make([]secret.Text, len(all))
	for i, c := range all {
		list[i] = secret.Text(strings.ReplaceAll(c, "{chat}", b.chat.URL+"/services/hunter22"))
	}
	return &list
}

func (b *bundle) setContacts(all ...string) {
	b.t.Helper()
	_, err := b.Store.Update(b.t.Context(), b.Company, b.sub.UUID, subscribers.Settings{Contacts: b.contacts(all...)})
	b.noErr(err)
}

// round is a minute of all replicas.
func (b *bundle) round() { b.roundIn(b.t.Context()) }

func (b *bundle) roundIn(ctx context.Context) {
	b.Advance(time.Minute)
	for _, n := range b.replicas {
		contacts.Round(n, ctx)
	}
}

// attempt records failures, of which the fourth in a row makes the state failing, or a success.
func (b *bundle) attempt(success bool, failures int) {
	b.t.Helper()
	for _, tr := range b.health.Record(b.t.Context(), []health.Sample{{
		Company: b.Company, Subscriber: b.sub.UUID, Success: success, TrailingFailures: failures, At: b.Now(),
	}}, health.Policy{DisableAfter: disableAfter}) {
		b.noErr(tr.Err)
		if tr.Kind == health.Expired {
			_, err := b.Store.DisableFailing(b.t.Context(), b.Company, b.sub.UUID)
			b.noErr(err)
		}
	}
}

var links = regexp.MustCompile(`https://hooks\.example\.com/contacts/(confirm|unsubscribe)\?t=\S+`)

// text is the decoded text of a message.
func (b *bundle) text(m smtptest.Message) string {
	b.t.Helper()
	_, body, _ := strings.Cut(string(m.Raw), "\r\n\r\n")
	text, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(body)))
	b.noErr(err)
	return string(text)
}

// link finds the link of a text to a page.
func (b *bundle) link(page, text string) string {
	b.t.Helper()
	for _, found := range links.FindAllString(text, -1) {
		if strings.Contains(found, "/"+page+"?") {
			return found
		}
	}
	b.t.Fatalf("no link to %s in %q", page, text)
	return ""
}

// open requests a link at a replica.
func (b *bundle) open(replica int, method, link string) (int, string) {
	b.t.Helper()
	return b.openIn(b.t.Context(), replica, method, link)
}

func (b *bundle) openIn(ctx context.Context, replica int, method, link string) (int, string) {
	b.t.Helper()
	r := httptest.NewRequestWithContext(ctx, method, strings.TrimPrefix(link, publicURL), strings.NewReader("List-Unsubscribe=One-Click"))
	w := httptest.NewRecorder()
	b.replicas[replica].ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// confirmAll lets the contacts confirm.
func (b *bundle) confirmAll() {
	b.t.Helper()
	b.round()
	texts := b.chat.got()
	for _, m := range b.smtp.Messages() {
		texts = append(texts, b.text(m))
	}
	for _, text := range texts {
		if code, page := b.open(0, http.MethodPost, b.link("confirm", text)); code != http.StatusOK || !strings.Contains(page, "Confirmed") {
			b.t.Fatalf("%d %s", code, page)
		}
	}
}

// subjects lists what ops was sent, without the names of subscribers.
func (b *bundle) subjects() (all []string) {
	b.t.Helper()
	for _, m := range b.smtp.Messages() {
		if m.To == ops {
			subject, _, _ := strings.Cut(m.Header.Get("Subject"), ":")
			all = append(all, subject)
		}
	}
	return all
}

func (b *bundle) states() string {
	b.t.Helper()
	sub, err := b.Store.Get(b.t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	states, err := b.replicas[0].States(b.t.Context(), b.Company, sub.Contacts...)
	b.noErr(err)
	var all []string
	for _, c := range sub.Contacts {
		all = append(all, states[c.Address])
	}
	return strings.Join(all, " ")
}

// count is the number of messages of a channel, kind and result, of all replicas.
func (b *bundle) count(channel, kind, result string) (n float64) {
	b.t.Helper()
	for _, registry := range b.metrics {
		families, err := registry.Gather()
		b.noErr(err)
		for _, m := range families[0].GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if slices.Equal(values, []string{channel, kind, result}) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

const (
	confirmSubject  = "Please confirm"
	warnedSubject   = "Webhook endpoint will be disabled"
	disabledSubject = "Webhook endpoint was disabled"
	recoverSubject  = "Webhook endpoint works again"
)

func (b *bundle) expect(subjects ...string) {
	b.t.Helper()
	if got := b.subjects(); !slices.Equal(got, subjects) {
		b.t.Fatalf("got %q, want %q", got, subjects)
	}
}

func TestAContactIsToldOnceOfEachState(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]bool{"server": false, "cluster": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := usual()
			s.cluster = cluster
			toldOnceOfEachState(t, s)
		})
	}
}

func toldOnceOfEachState(t *testing.T, s setting) {
	t.Helper()
	b := setup(t, s, ops, "{chat}")
	b.confirmAll()
	b.attempt(false, 4)
	b.round()
	b.Advance(disableAfter - 24*time.Hour - 3*time.Minute)
	b.round()
	b.expect(confirmSubject) // more than a day before
	b.Advance(2 * time.Minute)
	b.round()
	b.round()
	b.expect(confirmSubject, warnedSubject)
	b.Advance(25 * time.Hour)
	b.attempt(false, 1)
	b.round()
	b.round()
	b.expect(confirmSubject, warnedSubject, disabledSubject)
	_, err := b.Store.Update(t.Context(), b.Company, b.sub.UUID, subscribers.Settings{Enabled: new(true)})
	b.noErr(err)
	b.round()
	b.expect(confirmSubject, warnedSubject, disabledSubject) // nothing has succeeded yet
	b.attempt(true, 0)
	b.round()
	b.round()
	b.expect(confirmSubject, warnedSubject, disabledSubject, recoverSubject)
	if texts := b.chat.got(); len(texts) != 4 || !strings.Contains(texts[3], "works again") {
		t.Errorf("the chat got %q", texts)
	}
	if n := b.count("mail", "warned", "sent") + b.count("chat", "recovered", "sent"); n != 2 {
		t.Errorf("%v messages are counted", n)
	}
	// Another run of failures, which ends before the warning, is no news.
	b.attempt(false, 4)
	b.round()
	b.attempt(true, 0)
	b.round()
	if len(b.smtp.Messages()) != 4 {
		t.Error("told of a failure that ended")
	}
}

func TestAContactHearsOfTheLastStateOnly(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	for range 3 { // it is warned of, disabled, and works again, all within a minute
		b.attempt(false, 4)
		_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
		b.noErr(err)
		_, err = b.Store.Update(t.Context(), b.Company, b.sub.UUID, subscribers.Settings{Enabled: new(true)})
		b.noErr(err)
		b.attempt(true, 0)
	}
	b.round()
	b.expect(confirmSubject)
	// The company knows what it does itself.
	_, err := b.Store.Update(t.Context(), b.Company, b.sub.UUID, subscribers.Settings{Enabled: new(false)})
	b.noErr(err)
	b.round()
	b.expect(confirmSubject)
}

func TestNothingIsSentBeforeTheConfirmation(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops, "{chat}")
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	b.round()
	b.expect(confirmSubject)
	if got := b.states(); got != "unconfirmed unconfirmed" || len(b.chat.got()) != 1 {
		t.Fatalf("%s, %q", got, b.chat.got())
	}
	text := b.text(b.smtp.Messages()[0])
	if strings.Contains(text+b.chat.got()[0], "Payments") {
		t.Error("a request to confirm has text of the company")
	}
	// A program that checks mails opens the link: that confirms nothing.
	link := b.link("confirm", text)
	for range 2 {
		if code, page := b.open(0, http.MethodGet, link); code != http.StatusOK || !strings.Contains(page, "<button>Confirm</button>") || !strings.Contains(page, ops) {
			t.Fatalf("%d %s", code, page)
		}
	}
	b.round()
	b.expect(confirmSubject)
	if code, _ := b.openIn(redistest.Repeated(t.Context()), 0, http.MethodPost, link); code != http.StatusOK || b.states() != "confirmed unconfirmed" {
		t.Fatalf("%d %s", code, b.states())
	}
	b.open(0, http.MethodPost, link)
	if len(b.audited) != 1 || b.audited[0].Action != "contact.confirm" || b.audited[0].Actor.Subject != ops || *b.audited[0].CompanyUUID != b.Company {
		t.Errorf("audited: %+v", b.audited)
	}
	b.round()
	b.expect(confirmSubject, disabledSubject)
	if len(b.chat.got()) != 1 {
		t.Error("the chat, which has not confirmed, was told")
	}
}

func TestAForgedOrOldLinkDoesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.round()
	text := b.text(b.smtp.Messages()[0])
	link, leave := b.link("confirm", text), b.link("unsubscribe", text)
	forged := []string{
		publicURL + "/contacts/confirm", publicURL + "/contacts/confirm?t=", publicURL + "/contacts/confirm?t=x", link[:len(link)-2],
		strings.Replace(leave, "/unsubscribe?", "/confirm?", 1), // a link of another purpose
		strings.Replace(link, "/confirm?", "/unsubscribe?", 1), strings.Replace(link, "/confirm?", "/other?", 1),
	}
	for _, bad := range forged {
		if code, _ := b.open(0, http.MethodPost, bad); code != http.StatusNotFound {
			t.Errorf("%s: %d", bad, code)
		}
	}
	b.Advance(7 * 24 * time.Hour)
	if code, _ := b.open(0, http.MethodPost, link); code != http.StatusNotFound || b.states() != "unconfirmed" {
		t.Errorf("after a week: %d %s", code, b.states())
	}
	if code, _ := b.open(0, http.MethodPost, leave); code != http.StatusOK || b.states() != "unsubscribed" {
		t.Errorf("a link to unsubscribe does not expire: %d %s", code, b.states())
	}
}

func TestAContactThatUnsubscribedGetsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	m := b.smtp.Messages()[0]
	leave := strings.Trim(m.Header.Get("List-Unsubscribe"), "<>")
	if m.Header.Get("List-Unsubscribe-Post") != "List-Unsubscribe=One-Click" || leave != b.link("unsubscribe", b.text(m)) {
		t.Fatalf("%v", m.Header)
	}
	if code, page := b.open(0, http.MethodGet, leave); code != http.StatusOK || !strings.Contains(page, "<button>Unsubscribe</button>") || b.states() != "confirmed" {
		t.Fatalf("%d %s, %s", code, page, b.states())
	}
	if code, _ := b.openIn(redistest.Repeated(t.Context()), 0, http.MethodPost, leave); code != http.StatusOK || b.states() != "unsubscribed" {
		t.Fatalf("%d %s", code, b.states())
	}
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	// It stays so when it is removed and added again, by another subscriber, in other letters, and by its former link.
	b.setContacts("{chat}")
	b.round()
	b.setContacts("OPS@Example.com")
	b.round()
	if _, page := b.open(0, http.MethodPost, b.link("confirm", b.text(m))); !strings.Contains(page, "<h1>Unsubscribed</h1>") {
		t.Errorf("confirmed afterwards: %s", page)
	}
	in := b.Settings("https://example.com/b")
	in.Contacts = b.contacts(ops)
	_, err = b.Store.Create(t.Context(), b.Company, in)
	b.noErr(err)
	b.round()
	b.round()
	b.expect(confirmSubject)
	if b.states() != "unsubscribed" || len(b.audited) != 2 || b.audited[1].Action != "contact.unsubscribe" {
		t.Errorf("%s, %+v", b.states(), b.audited)
	}
	// Another company may ask.
	other := b.With(subscribers.StoreOptions{Mail: true})
	other.Company = uuid.New()
	_, err = other.Store.Create(t.Context(), other.Company, in)
	b.noErr(err)
	b.round()
	b.expect(confirmSubject, confirmSubject)
}

// A contact that no subscriber has any more must confirm again, and its former link confirms nothing.
func TestARemovedContactIsForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	former := b.link("confirm", b.text(b.smtp.Messages()[0]))
	b.setContacts("other@example.com")
	b.round()
	if code, page := b.open(0, http.MethodPost, former); code != http.StatusOK || !strings.Contains(page, "Nothing to confirm") {
		t.Errorf("%d %s", code, page)
	}
	b.setContacts(ops)
	if b.states() != "unconfirmed" {
		t.Error(b.states())
	}
	b.round()
	b.expect(confirmSubject, confirmSubject)
	b.setContacts() // also if there are no others
	b.round()
	b.Advance(24 * time.Hour) // an address is not asked more often
	b.setContacts(ops)
	b.round()
	b.expect(confirmSubject, confirmSubject, confirmSubject)
	noKey := func(key string) {
		t.Helper()
		if n, err := b.Redis.HLen(t.Context(), key).Result(); err != nil || n != 0 {
			t.Errorf("%s: %d, %v", key, n, err)
		}
	}
	told := layout.ToldKey(partition.Of(b.Company))
	b.noErr(b.Store.Delete(t.Context(), b.Company, b.sub.UUID))
	b.round()
	noKey(told)
	noKey(layout.ContactsKey(b.Company))
}

func TestNoAddressIsFlooded(t *testing.T) {
	t.Parallel()
	b := setup(t, usual())
	// A company with many addresses.
	for i := range 5 {
		in := b.Settings(fmt.Sprintf("https://example.com/%d", i))
		var list []string
		for j := range 5 {
			list = append(list, fmt.Sprintf("victim%d.%d@example.com", i, j))
		}
		in.Contacts = b.contacts(list...)
		_, err := b.Store.Create(t.Context(), b.Company, in)
		b.noErr(err)
	}
	for range 3 {
		b.round()
	}
	if n := len(b.smtp.Messages()); n != 10 {
		t.Errorf("a company sent %d requests to confirm", n)
	}
	// One address, with other tags, by many companies.
	for i := range 8 {
		other := b.With(subscribers.StoreOptions{Mail: true})
		other.Company = uuid.New()
		in := b.Settings("https://example.com/a")
		in.Contacts = b.contacts(fmt.Sprintf("One+%d@example.com", i))
		_, err := other.Store.Create(t.Context(), other.Company, in)
		b.noErr(err)
	}
	before := len(b.smtp.Messages())
	for range 3 {
		b.round()
	}
	if n := len(b.smtp.Messages()) - before; n != 3 {
		t.Errorf("%d requests to confirm to one address", n)
	}
	if b.count("mail", "confirm", "limited") == 0 {
		t.Error("the limit is not counted")
	}
}

// A company that asks one address again and again leaves some requests to the others.
func TestACompanyAsksAnAddressAFewTimes(t *testing.T) {
	t.Parallel()
	b := setup(t, usual())
	for range 6 {
		b.setContacts(ops)
		b.round()
		b.setContacts()
		b.round()
		b.Advance(time.Hour)
	}
	b.expect(confirmSubject, confirmSubject)
	other := b.With(subscribers.StoreOptions{Mail: true})
	other.Company = uuid.New()
	in := b.Settings("https://example.com/a")
	in.Contacts = b.contacts(ops)
	_, err := other.Store.Create(t.Context(), other.Company, in)
	b.noErr(err)
	b.round()
	b.expect(confirmSubject, confirmSubject, confirmSubject)
}

// A chat reads the path of its URL alone, so a query makes no other chat of it.
func TestNoChatIsFlooded(t *testing.T) {
	t.Parallel()
	b := setup(t, usual())
	for i := range 8 {
		other := b.With(subscribers.StoreOptions{Mail: true})
		other.Company = uuid.New()
		in := b.Settings("https://example.com/a")
		in.Contacts = b.contacts(fmt.Sprintf("{chat}?%d", i))
		_, err := other.Store.Create(t.Context(), other.Company, in)
		b.noErr(err)
	}
	for range 3 {
		b.round()
	}
	if n := len(b.chat.got()); n != 3 {
		t.Errorf("%d requests to confirm to one chat", n)
	}
}

// With a longer schedule of retries the subscriber is disabled later, and its contacts are warned of that time, too.
func TestAContactIsWarnedOfTheNewTime(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	b.attempt(false, 4)
	b.Advance(disableAfter - 23*time.Hour)
	b.round()
	b.expect(confirmSubject, warnedSubject)
	_, err := b.Store.Update(t.Context(), b.Company, b.sub.UUID, subscribers.Settings{RetrySchedule: new([]int{int(disableAfter.Seconds()), 86400})})
	b.noErr(err)
	b.round()
	b.expect(confirmSubject, warnedSubject)
	b.Advance(48 * time.Hour)
	b.round()
	b.round()
	b.expect(confirmSubject, warnedSubject, warnedSubject)
}

func TestACompanyHasAFewMessagesAnHour(t *testing.T) {
	t.Parallel()
	s := usual()
	s.hourly = 2
	b := setup(t, s, ops, "{chat}")
	b.confirmAll()
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	if n := len(b.smtp.Messages()) + len(b.chat.got()); n != 3 { // two requests to confirm are not counted
		t.Errorf("%d messages, of at most 3", n)
	}
	b.Advance(2 * time.Hour)
	b.round()
	b.expect(confirmSubject, disabledSubject) // nothing is lost
	if len(b.chat.got()) != 2 {
		t.Errorf("the chat got %q", b.chat.got())
	}
}

// A contact may open the link before it is noted that it was asked, or after a failover that has lost the note.
func TestAContactConfirmsBeforeItIsNoted(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.round()
	b.noErr(b.Redis.Del(t.Context(), layout.ContactsKey(b.Company)).Err())
	if code, page := b.open(0, http.MethodPost, b.link("confirm", b.text(b.smtp.Messages()[0]))); code != http.StatusOK || !strings.Contains(page, "Confirmed") {
		t.Errorf("%d %s", code, page)
	}
}

// refusing is a Redis that takes no new data, as at its memory limit.
type refusing struct{}

func (refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "hset" {
			cmd.SetErr(errors.New("OOM command not allowed"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestNothingIsRepeatedEachMinuteWhileRedisIsFull(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.Redis.AddHook(refusing{})
	for range 30 {
		b.round()
	}
	b.expect(confirmSubject)
}

func TestMailWaitsForTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops, "{chat}")
	b.confirmAll()
	b.smtp.Stop()
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	if len(b.chat.got()) != 2 || b.count("mail", "disabled", "failed") != 1 {
		t.Errorf("the chat got %q", b.chat.got())
	}
	for range 5 {
		b.round()
	}
	if n := b.count("mail", "disabled", "failed"); n != 3 { // after 1, 2 and 4 minutes
		t.Errorf("%v tries in 6 minutes", n)
	}
	b.smtp.Start(t)
	b.Advance(time.Hour)
	b.round()
	b.round()
	b.expect(confirmSubject, disabledSubject)
	if len(b.chat.got()) != 2 {
		t.Errorf("the chat got %q", b.chat.got())
	}
}

func TestWhatIsRefusedForGoodIsNotRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops, "{chat}")
	b.confirmAll()
	b.smtp.Refuse(smtptest.ErrPermanent)
	b.chat.answer(http.StatusNotFound)
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	for range 3 {
		b.Advance(time.Hour)
		b.round()
	}
	if mail, chat := b.count("mail", "disabled", "refused"), b.count("chat", "disabled", "refused"); mail != 1 || chat != 1 {
		t.Errorf("%v %v", mail, chat)
	}
}

func TestAChatAnswersARedirectOrAnError(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), "{chat}")
	b.chat.answer(http.StatusServiceUnavailable)
	b.round()
	if b.count("chat", "confirm", "failed") != 1 {
		t.Error("503 is not a failure")
	}
	b.chat.answer(http.StatusTemporaryRedirect)
	b.Advance(time.Hour)
	b.round()
	b.round()
	if b.count("chat", "confirm", "refused") != 1 {
		t.Error("a redirect is followed, or repeated")
	}
}

// The check when the URL is set is not enough: a name may resolve to another address later.
func TestAChatAtAPrivateAddressGetsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, setting{hourly: 100}, "{chat}")
	b.round()
	if len(b.chat.got()) != 0 || b.count("chat", "confirm", "failed") != 1 {
		t.Errorf("the chat got %q", b.chat.got())
	}
}

const hostile = "Pay <!channel> <https://evil.example|here> *b* `c` @here www.evil.example a@evil.example \u202e\u2028& " + `"'\` + "1234567890123456789012345678901234567890"

func TestTheNameOfASubscriberIsHarmless(t *testing.T) {
	t.Parallel()
	s := usual()
	s.name = strings.ReplaceAll(hostile, "\u2028", "")
	b := setup(t, s, ops, "{chat}")
	b.confirmAll()
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	m := b.smtp.Messages()[1]
	text := b.text(m)
	for _, bad := range []string{"evil.example", "@", "<", "*", "`", "\u202e", "!"} {
		of := links.ReplaceAllString(text+b.chat.got()[1]+m.Header.Get("Subject"), "")
		if strings.Contains(of, bad) {
			t.Errorf("%q in %s", bad, of)
		}
	}
	if kind := m.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") || m.From != "hooks@example.com" {
		t.Errorf("%s from %s", kind, m.From)
	}
	if name := contacts.Plain(hostile + strings.Repeat("ä", 300)); len([]rune(name)) > 100 || strings.ContainsAny(name, "\r\n\u2028.:/@<>&*_`~") {
		t.Errorf("%q", name)
	}
	if _, err := mail.ParseAddressList(m.Header.Get("To")); err != nil {
		t.Error(err)
	}
}

// What Slack reads as more than text is escaped, also where it is the operator's.
func TestATextIsEscapedForAChat(t *testing.T) {
	t.Parallel()
	s := usual()
	s.base = "https://hooks.example.com/<!channel>&a"
	b := setup(t, s, "{chat}")
	b.round()
	if text := b.chat.got()[0]; !strings.Contains(text, "https://hooks.example.com/&lt;!channel&gt;&amp;a/contacts/") || strings.Contains(text, "<") {
		t.Error(text)
	}
}

func TestOnlyTheOwnerTells(t *testing.T) {
	t.Parallel()
	s := usual()
	s.replicas = 2
	b := setup(t, s, ops)
	b.confirmAll()
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.round()
	b.expect(confirmSubject, disabledSubject)
	b.owner = 1 // it knows what the former one has told
	b.round()
	_, err = b.Store.Update(t.Context(), b.Company, b.sub.UUID, subscribers.Settings{Enabled: new(true)})
	b.noErr(err)
	b.attempt(true, 0)
	b.round()
	b.expect(confirmSubject, disabledSubject, recoverSubject)
	// Any replica answers a link.
	if code, _ := b.open(1, http.MethodPost, b.link("unsubscribe", b.text(b.smtp.Messages()[2]))); code != http.StatusOK || b.states() != "unsubscribed" {
		t.Errorf("%d %s", code, b.states())
	}
}

// The owner changes after it has read what there is to tell.
func TestAFormerOwnerTellsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops, "{chat}")
	b.looks = 2
	b.round()
	if len(b.smtp.Messages())+len(b.chat.got()) != 0 {
		t.Error("told by a replica that does not own the partition")
	}
}

func TestALostReplyRepeatsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	_, err := b.Store.DisableFailing(t.Context(), b.Company, b.sub.UUID)
	b.noErr(err)
	b.roundIn(redistest.Repeated(t.Context()))
	b.roundIn(redistest.Repeated(t.Context()))
	b.expect(confirmSubject, disabledSubject)
	// The process ended before it could write what it told: one message is repeated, with the same Message-ID.
	b.noErr(b.Redis.HSet(t.Context(), layout.ToldKey(partition.Of(b.Company)), b.Company.String()+"/"+b.sub.UUID.String(), "").Err())
	b.round()
	b.round()
	b.expect(confirmSubject, disabledSubject, disabledSubject)
	if all := b.smtp.Messages(); all[1].Header.Get("Message-Id") != all[2].Header.Get("Message-Id") || all[1].Header.Get("Message-Id") == all[0].Header.Get("Message-Id") {
		t.Error("the repeated message has another Message-ID")
	}
}

func TestACompanyThatIsErasedIsForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.confirmAll()
	b.noErr(b.Store.Forget(t.Context(), b.Company))
	if b.states() != "unconfirmed" {
		t.Error(b.states())
	}
}

// The company is erased while one of its contacts is asked: nothing of it stays.
func TestACompanyThatIsErasedWhileItsContactIsAskedIsForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, usual(), ops)
	b.smtp.OnMessage(func(smtptest.Message) {
		if err := errors.Join(b.Store.Delete(t.Context(), b.Company, b.sub.UUID), b.Store.Forget(t.Context(), b.Company)); err != nil {
			t.Error(err)
		}
	})
	b.round()
	b.round()
	b.expect(confirmSubject)
	left, err := b.Redis.Exists(t.Context(), layout.ContactsKey(b.Company), layout.ToldKey(partition.Of(b.Company))).Result()
	if err != nil || left != 0 {
		t.Errorf("%d keys are left, %v", left, err)
	}
}

func TestMailer(t *testing.T) {
	t.Parallel()
	server := smtptest.New(t)
	good := contacts.SMTP{
		Host: smtptest.Host, Port: server.Port, Username: smtptest.Username, Password: smtptest.Password, From: "hooks@example.com",
		Security: "starttls", TLS: &tls.Config{RootCAs: server.Roots, MinVersion: tls.VersionTLS12},
	}
	for name, c := range map[string]struct {
		change func(*contacts.SMTP)
		ok     bool
	}{
		"as it is":              {func(*contacts.SMTP) {}, true},
		"wrong password":        {func(s *contacts.SMTP) { s.Password = "x" }, false},
		"unknown certificate":   {func(s *contacts.SMTP) { s.TLS = nil }, false},
		"TLS from the start":    {func(s *contacts.SMTP) { s.Security = "tls" }, false},
		"password without TLS":  {func(s *contacts.SMTP) { s.Security = "none" }, false},
		"nobody at the address": {func(s *contacts.SMTP) { s.Port = 1 }, false},
	} {
		s := good
		c.change(&s)
		m, err := contacts.NewMailer(s)
		if err == nil {
			err = m.Check(t.Context())
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	good.From = "hooks"
	if _, err := contacts.NewMailer(good); err == nil {
		t.Error("an invalid sender is accepted")
	}
}
