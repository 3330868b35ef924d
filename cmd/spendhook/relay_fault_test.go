//go:build faults

package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"spendhook/api/gen"
	"spendhook/internal/pause"
	"spendhook/internal/pgtest"
	"spendhook/internal/rabbittest"
)

var relayRecords = flag.Int("relay-records", 1000, "how many records of each source TestRelaysLoseNothing writes")

const (
	relayKeys   = 20
	relayPoison = 100 // each such record can never be accepted
	relayBatch  = 50
)

// relayPlace is one source of a relay.
type relayPlace struct {
	name     string
	settings string
	write    func(ctx context.Context, records []relayRecord) error
	dead     func() map[string]bool // ids of the dead records
}

// relayRecord is an event record of a key.
type relayRecord struct {
	key, id string
	company uuid.UUID
	event   string
	at      time.Time
}

func (r relayRecord) json() []byte {
	return fmt.Appendf(nil, `{"id":%q,"event":%q,"timestamp":%d,"companyUuid":%q,"metadata":{"key":%q}}`,
		r.id, r.event, r.at.UnixMilli(), r.company, r.key)
}

// recordOf is the n-th record of a place. Each relayPoison-th is of a company that the source may not name, or of a
// type that the daemon refuses.
func (p *relayPlace) recordOf(n int, company uuid.UUID) relayRecord {
	key := fmt.Sprintf("k%d", n%relayKeys)
	r := relayRecord{key: key, id: fmt.Sprintf("%s-%s-%d", p.name, key, n), company: company, event: "PAYMENT_PAID", at: time.Now()}
	switch n % (2 * relayPoison) {
	case relayPoison - 1:
		r.company = uuid.UUID{14: 9, 6: 0x40, 8: 0x80}
	case 2*relayPoison - 1:
		r.event = "DELIVERY_DEAD"
	}
	return r
}

// relays are two relays of four sources, the daemons to which they send, and what breaks.
type relays struct {
	*chaos

	config    string
	rabbit    *rabbittest.Server
	postgres  *pgtest.Server
	away      atomic.Bool // the API does not answer
	processes [2]*exec.Cmd
	counts    map[string]int
	broker    *kgo.Client
}

// Two relays carry records of Kafka, of a classic and a quorum queue of RabbitMQ, and of a table of PostgreSQL, while
// relays, replicas, Redis, RabbitMQ and PostgreSQL are killed, and the API is away and full, at random. Each record is
// accepted once, in order for its key; each that can never be accepted is dead, and no other.
func TestRelaysLoseNothing(t *testing.T) {
	co := startChaosCompany(t)
	c := co.chaos
	r := &relays{chaos: c, rabbit: rabbittest.Start(t), postgres: pgtest.Start(t), counts: map[string]int{}}
	proxy := co.anyReplica()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.away.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(api.Close)
	places := []*relayPlace{r.kafka(), r.queue("classic", rabbittest.Classic), r.queue("quorum", rabbittest.Quorum), r.table()}
	r.configure(api.URL, places, co.id)
	for i := range r.processes {
		r.start(i)
	}
	t.Cleanup(func() {
		for i := range r.processes {
			r.end(i, syscall.SIGKILL)
		}
	})

	var writing sync.WaitGroup
	for _, p := range places {
		writing.Go(func() { r.write(p, co.id) })
	}
	written := make(chan struct{})
	go func() {
		writing.Wait()
		close(written)
	}()
	for failing := true; failing; {
		select {
		case <-written:
			failing = false
		default:
			pause.For(t.Context(), time.Second+rand.N(2*time.Second))
			r.fail()
		}
	}
	for i := range r.processes {
		r.end(i, syscall.SIGTERM)
	}
	r.expire()
	for i := range r.processes {
		r.start(i)
	}
	feed := r.subscribe(co)
	for _, p := range places {
		r.account(p, feed)
	}
	for _, what := range slices.Sorted(maps.Keys(r.counts)) {
		t.Logf("%-28s %d times", what, r.counts[what])
	}
	for _, f := range c.faults {
		t.Logf("%s for %s", f.what, f.to.Sub(f.from).Round(time.Millisecond))
	}
	for i := range r.processes {
		r.end(i, syscall.SIGTERM)
	}
	for _, d := range c.daemons {
		d.stop(t)
	}
}

// configure writes the settings of the relays.
func (r *relays) configure(api string, places []*relayPlace, company uuid.UUID) {
	r.t.Helper()
	dir := r.t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("replaced"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	text := fmt.Appendf(nil, "url: %s\ntoken_file: %s\nadmin_listen: 127.0.0.1:0\nlog: {format: json}\nsources:\n", api, token)
	for _, p := range places {
		text = fmt.Appendf(text, "  %s:\n    companies: [%s]\n%s", p.name, company, p.settings)
	}
	r.config = filepath.Join(dir, "relay.yml")
	if err := os.WriteFile(r.config, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *relays) start(i int) {
	r.t.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0], "relay", "--config", r.config)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	errs := &lockedBuffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.processes[i] = cmd
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("relay %d:\n%s", cmd.Process.Pid, errs)
		}
	})
}

func (r *relays) end(i int, by syscall.Signal) {
	_ = r.processes[i].Process.Signal(by)
	_ = r.processes[i].Wait()
}

// write writes the records of a place, each until it is kept.
func (r *relays) write(p *relayPlace, company uuid.UUID) {
	for n := 0; n < *relayRecords; n += relayBatch {
		var batch []relayRecord
		for i := range relayBatch {
			batch = append(batch, p.recordOf(n+i, company))
		}
		for until := time.Now().Add(deliveryPatience); ; {
			within, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
			err := p.write(within, batch)
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(until) {
				r.t.Errorf("write to %s: %v", p.name, err)
				return
			}
			pause.For(r.t.Context(), 100*time.Millisecond)
		}
		pause.For(r.t.Context(), rand.N(1200*time.Millisecond))
	}
}

// fail causes a fault and ends it.
func (r *relays) fail() {
	i := rand.IntN(2)
	faults := []struct {
		what  string
		cause func()
	}{
		{"a relay is killed", func() { r.end(i, syscall.SIGKILL); r.start(i) }},
		{"both relays are killed", func() {
			r.end(0, syscall.SIGKILL)
			r.end(1, syscall.SIGKILL)
			r.start(0)
			r.start(1)
		}},
		{"a relay is stopped", func() { r.end(i, syscall.SIGTERM); r.start(i) }},
		{"a relay is suspended", func() {
			_ = r.processes[i].Process.Signal(syscall.SIGSTOP)
			pause.For(r.t.Context(), rand.N(8*time.Second))
			_ = r.processes[i].Process.Signal(syscall.SIGCONT)
		}},
		{"RabbitMQ is killed", func() { r.rabbit.Kill(); r.rabbit.Restart() }},
		{"PostgreSQL is killed", func() { r.postgres.Stop(); r.postgres.Restart() }},
		{"the API is away", func() {
			r.away.Store(true)
			pause.For(r.t.Context(), rand.N(6*time.Second))
			r.away.Store(false)
		}},
		{"Redis is full", func() {
			client := r.server.Client()
			client.ConfigSet(r.t.Context(), "maxmemory", "1mb")
			pause.For(r.t.Context(), 3*time.Second)
			client.ConfigSet(r.t.Context(), "maxmemory", "0")
		}},
		{"replicas or Redis fail", func() { r.cause(rand.IntN(7)) }},
	}
	f := faults[rand.IntN(len(faults))]
	r.counts[f.what]++
	f.cause()
}

// subscribe returns a reader of all events of the company.
func (r *relays) subscribe(co *chaosCompany) *feedReader {
	r.t.Helper()
	const body = `{"name":"all","callbackUrl":"http://127.0.0.1:9/","events":["PAYMENT_PAID"],"enabled":false}`
	status, answer := co.call(r.t.Context(), http.MethodPost, "/api/v1/subscribers", body, uuid.NewString())
	var created gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(answer), &created); err != nil || status != http.StatusCreated {
		r.t.Fatalf("subscribe: %d %s", status, answer)
	}
	return &feedReader{tb: r.t, subscriber: created.UUID, daemons: func(i int) *running {
		return &running{api: co.daemons[i%2].api, token: co.tokens[i%2]}
	}}
}

// account waits until all records of a place are settled, and compares.
func (r *relays) account(p *relayPlace, feed *feedReader) {
	r.t.Helper()
	poison := *relayRecords / relayPoison
	accepted := map[string][]int{}
	want := *relayRecords - poison
	eventually(r.t, deliveryPatience, fmt.Sprintf("%s: %d records are accepted, %d dead", p.name, want, poison), func() bool {
		feed.read(r.t.Context(), "1s")
		clear(accepted)
		n := 0
		for _, id := range feed.ids {
			var number int
			key, rest, ok := strings.Cut(strings.TrimPrefix(id, p.name+"-"), "-")
			if _, err := fmt.Sscan(rest, &number); strings.HasPrefix(id, p.name+"-") && ok && err == nil {
				accepted[key] = append(accepted[key], number)
				n++
			}
		}
		return n >= want && len(p.dead()) >= poison
	})
	early := 0
	for key, numbers := range accepted {
		if !slices.IsSorted(numbers) {
			early++
			r.t.Errorf("%s: the records of %s were accepted in the order %v", p.name, key, numbers)
		}
		if len(slices.Compact(slices.Sorted(slices.Values(numbers)))) != len(numbers) {
			r.t.Errorf("%s: a record of %s was accepted twice: %v", p.name, key, numbers)
		}
	}
	dead := p.dead()
	for id := range dead {
		var number int
		if _, err := fmt.Sscan(id[strings.LastIndex(id, "-")+1:], &number); err != nil || number%relayPoison != relayPoison-1 {
			r.t.Errorf("%s: %s is dead", p.name, id)
		}
	}
	total := 0
	for _, numbers := range accepted {
		total += len(numbers)
	}
	if total != want || len(dead) != poison {
		r.t.Errorf("%s: %d accepted, %d dead, want %d and %d", p.name, total, len(dead), want, poison)
	}
	r.t.Logf("%-8s %d records: %d accepted once, %d dead, %d keys out of order", p.name, *relayRecords, total, len(dead), early)
}

// kafka is a topic of a broker in this process.
func (r *relays) kafka() *relayPlace {
	r.t.Helper()
	const topic, dead = "payments", "payments-dead"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(4, topic, dead))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(client.Close)
	r.broker = client
	reader, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(dead))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(reader.Close)
	ids := map[string]bool{}
	return &relayPlace{
		name: "kafka",
		settings: fmt.Sprintf("    kafka: {brokers: ['%s'], topics: [%s], dead_letter_topic: %s}\n",
			strings.Join(cluster.ListenAddrs(), "','"), topic, dead),
		write: func(ctx context.Context, records []relayRecord) error {
			var list []*kgo.Record
			for _, record := range records {
				list = append(list, &kgo.Record{Topic: topic, Key: []byte(record.key), Value: record.json()})
			}
			return client.ProduceSync(ctx, list...).FirstErr()
		},
		dead: func() map[string]bool {
			ctx, cancel := context.WithTimeout(r.t.Context(), 200*time.Millisecond)
			defer cancel()
			reader.PollFetches(ctx).EachRecord(func(record *kgo.Record) { ids[idIn(record.Value)] = true })
			return ids
		},
	}
}

// expire removes the members of relays that are dead from the consumer group. A broker does so itself when their sessions
// end; kfake keeps one for ever that was killed while it joined.
func (r *relays) expire() {
	r.t.Helper()
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{"spendhook-relay"}
	found, err := describe.RequestWith(r.t.Context(), r.broker)
	if err != nil || len(found.Groups) != 1 {
		r.t.Fatalf("%+v, %v", found, err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = describe.Groups[0]
	for _, m := range found.Groups[0].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		leave.Members = append(leave.Members, member)
	}
	if left, err := leave.RequestWith(r.t.Context(), r.broker); err != nil || left.ErrorCode != 0 {
		r.t.Fatalf("%+v, %v", left, err)
	}
	r.counts["a dead member was removed"] += len(leave.Members)
}

func idIn(value []byte) string {
	var record struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(value, &record) // our own records
	return record.ID
}

// queue is a queue of RabbitMQ.
func (r *relays) queue(name, kind string) *relayPlace {
	r.t.Helper()
	dead := name + "-dead"
	r.rabbit.DeclareOrdered(name, kind)
	r.rabbit.Declare(dead, kind)
	ids := map[string]bool{}
	return &relayPlace{
		name: name,
		settings: fmt.Sprintf("    rabbitmq: {url: '%s', queue: %s, dead_letter_queue: %s}\n    mapping: {key: value.metadata.key}\n",
			r.rabbit.URL(), name, dead),
		write: func(ctx context.Context, records []relayRecord) error {
			return withChannel(r.rabbit.URL(), func(ch *amqp.Channel) error {
				for _, record := range records {
					confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", name, true, false,
						amqp.Publishing{Body: record.json(), DeliveryMode: amqp.Persistent})
					if err != nil {
						return err
					}
					if ok, err := confirmed.WaitContext(ctx); err != nil || !ok {
						return fmt.Errorf("not confirmed: %w", err)
					}
				}
				return nil
			})
		},
		dead: func() map[string]bool {
			_ = withChannel(r.rabbit.URL(), func(ch *amqp.Channel) error { // asked again
				for {
					message, ok, err := ch.Get(dead, true)
					if err != nil || !ok {
						return err
					}
					ids[idIn(message.Body)] = true
				}
			})
			return ids
		},
	}
}

func withChannel(url string, do func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	return do(ch)
}

// table is an outbox.
func (r *relays) table() *relayPlace {
	r.t.Helper()
	schema := command(r.t, "", "relay", "schema")
	schema.want(r.t, exitOK, "CREATE TABLE", "")
	query := func(ctx context.Context, do func(*pgx.Conn) error) error {
		conn, err := pgx.Connect(ctx, r.postgres.URL())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // what matters is committed
		return do(conn)
	}
	err := query(r.t.Context(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(r.t.Context(), schema.stdout)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ids := map[string]bool{}
	return &relayPlace{
		name:     "table",
		settings: fmt.Sprintf("    postgres: {url: '%s'}\n", r.postgres.URL()),
		write: func(ctx context.Context, records []relayRecord) error {
			return query(ctx, func(conn *pgx.Conn) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					for _, record := range records {
						_, err := tx.Exec(ctx, `INSERT INTO spendhook_outbox (id, company_uuid, event, key, "timestamp", metadata)
							VALUES ($1, $2, $3, $4, $5, json_build_object('key', $4::text))`,
							record.id, record.company, record.event, record.key, record.at)
						if err != nil {
							return err
						}
					}
					return nil
				})
			})
		},
		dead: func() map[string]bool {
			_ = query(r.t.Context(), func(conn *pgx.Conn) error { // asked again
				rows, err := conn.Query(r.t.Context(), `SELECT id FROM spendhook_outbox_dead`)
				if err != nil {
					return err
				}
				list, err := pgx.CollectRows(rows, pgx.RowTo[string])
				for _, id := range list {
					ids[id] = true
				}
				return err
			})
			return ids
		},
	}
}
