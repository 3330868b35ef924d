package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

// fixture is what a build left in Redis when it was killed in the middle of its
// work, with what must become of it.
type fixture struct {
	Build       string
	Written     time.Time
	Subscribers map[string]fixtureSubscriber // by what they are for
	Events      map[string]string            // each event as it was sent, by id
	Keys        []fixtureKey
}

type fixtureSubscriber struct {
	UUID   uuid.UUID
	Secret string
	Server string // the base of its callback URL
}

// fixtureKey is one key. Values are a string, members of a list or set, fields
// with values, members with scores, or ids of a stream with a field and its value;
// what is not text is in base64.
type fixtureKey struct {
	Key, Type string
	TTL       int64 // ms; 0 for none
	Values    []string
}

const base64Mark = "base64:"

func encodeText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return base64Mark + base64.StdEncoding.EncodeToString([]byte(s))
}

func decodeText(s string) (string, error) {
	coded, ok := strings.CutPrefix(s, base64Mark)
	if !ok {
		return s, nil
	}
	b, err := base64.StdEncoding.DecodeString(coded)
	return string(b), err
}

// What a fixture's subscribers are for: the steady one takes what it is sent,
// except that a first build's retry-* failed and its flight-* hung; the gone one
// answered 410; the held one failed and was then disabled.
const (
	steady = "steady"
	gone   = "gone"
	held   = "held"
)

var fixtureTypes = map[string]string{
	steady: "PAYMENT_PAID", gone: "CARD_CREATION_REQUEST_ERROR", held: "CARD_CREATION_REQUEST_CREATED",
}

// TestWriteUpgradeFixture writes what this build leaves in Redis to the file
// named by SPENDHOOK_UPGRADE_FIXTURE, for the builds after it (see CONTRIBUTING.md).
func TestWriteUpgradeFixture(t *testing.T) {
	t.Parallel()
	file := os.Getenv("SPENDHOOK_UPGRADE_FIXTURE")
	if file == "" {
		t.Skip("SPENDHOOK_UPGRADE_FIXTURE names no file")
	}
	server := redistest.Start(t, redistest.Options{})
	d := newHouse(t, server.URL(), "delivery: {schedule: [3s, 3s, 3s, 3s]}\n"+sharedKey).startChild(t)
	f := &fixture{
		Build: os.Getenv("SPENDHOOK_UPGRADE_BUILD"), Written: time.Now().UTC(),
		Subscribers: map[string]fixtureSubscriber{}, Events: map[string]string{},
	}
	release := make(chan struct{})
	answers := map[string]func(id string) int{
		gone: func(string) int { return http.StatusGone },
		held: func(string) int { return http.StatusInternalServerError },
		steady: func(id string) int {
			switch {
			case strings.HasPrefix(id, "retry"):
				return http.StatusInternalServerError
			case strings.HasPrefix(id, "flight"):
				<-release
			}
			return http.StatusNoContent
		},
	}
	for role, answer := range answers {
		e := newEndpoint(t, answer)
		s := e.subscribe(t, d, fixtureTypes[role])
		f.Subscribers[role] = fixtureSubscriber{UUID: s.UUID, Secret: s.Secret, Server: e.URL}
	}
	t.Cleanup(func() { close(release) }) // before the endpoints close
	f.fill(t, d, server.Client())
	d.signal(syscall.SIGKILL)
	d.ended(t)
	f.dump(t, server.Client())
	text, err := json.Marshal(f, jsontext.WithIndent(" "), json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fill leaves deliveries in every status, and work in every place.
func (f *fixture) fill(t *testing.T, d *running, client redis.UniversalClient) {
	t.Helper()
	f.emit(t, d, steady, "done", 3)
	f.emit(t, d, gone, "dead", 3)
	f.emit(t, d, held, "held", 3)
	f.reaches(t, d, steady, "done", gen.DeliveryStatusDELIVERED, "")
	f.reaches(t, d, gone, "dead", gen.DeliveryStatusDEAD, "")
	f.reaches(t, d, held, "held", gen.DeliveryStatusRETRYING, "")
	status, _, body := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+f.Subscribers[held].UUID.String(), `{"enabled":false}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	f.reaches(t, d, held, "held", gen.DeliveryStatusRETRYING, "SUBSCRIBER_DISABLED")
	f.emit(t, d, steady, "flight", 5)
	f.emit(t, d, steady, "retry", 5)
	f.reaches(t, d, steady, "retry", gen.DeliveryStatusRETRYING, "")
	for _, queue := range []string{"spendhook0", "spendhook1"} {
		if err := client.Set(t.Context(), "asynq:{"+queue+"}:paused", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	pause(t.Context(), time.Second) // a look at the queue may be under way
	f.emit(t, d, steady, "queued", 5)
}

// emit sends events in one batch.
func (f *fixture) emit(t *testing.T, d *running, role, name string, n int) {
	t.Helper()
	var lines []string
	for i := range n {
		id := name + "-" + strconv.Itoa(i)
		f.Events[id] = fmt.Sprintf(`{"id":%q,"event":%q,"timestamp":%q,"metadata":{"n":%d}}`,
			id, fixtureTypes[role], f.Written.Format("2006-01-02T15:04:05.000Z07:00"), i)
		lines = append(lines, f.Events[id])
	}
	d.cli(t, strings.Join(lines, "\n"), "emit", "-").want(t, exitOK, fmt.Sprintf("accepted %d", n), "")
}

// reaches waits until all events of the name stand in status, for that reason.
func (f *fixture) reaches(t *testing.T, d *running, role, name string, status gen.DeliveryStatus, reason string) {
	t.Helper()
	eventually(t, patience, name+" is "+string(status), func() bool {
		found := d.deliveries(t, "")
		for id := range f.Events {
			delivery := found[id+"."+f.Subscribers[role].UUID.String()]
			if strings.HasPrefix(id, name) && (delivery.Status != status || reason != "" && delivery.Reason != reason) {
				return false
			}
		}
		return true
	})
}

func (f *fixture) dump(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if strings.HasSuffix(key, ":paused") || strings.HasPrefix(key, "sh:idem:") {
			continue
		}
		k, err := dumpKey(t.Context(), client, key)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		f.Keys = append(f.Keys, k)
	}
}

func dumpKey(ctx context.Context, client redis.UniversalClient, key string) (fixtureKey, error) {
	k := fixtureKey{Key: key, Type: client.Type(ctx, key).Val()}
	if ttl := client.PTTL(ctx, key).Val(); ttl > 0 {
		k.TTL = ttl.Milliseconds()
	}
	var values []string
	var err error
	switch k.Type {
	case "string":
		var v string
		v, err = client.Get(ctx, key).Result()
		values = []string{v}
	case "list":
		values, err = client.LRange(ctx, key, 0, -1).Result()
	case "set":
		values, err = client.SMembers(ctx, key).Result()
	case "hash":
		var fields map[string]string
		fields, err = client.HGetAll(ctx, key).Result()
		for field, v := range fields {
			values = append(values, field, v)
		}
	case "zset":
		var members []redis.Z
		members, err = client.ZRangeWithScores(ctx, key, 0, -1).Result()
		for _, m := range members {
			values = append(values, m.Member.(string), strconv.FormatFloat(m.Score, 'f', -1, 64))
		}
	case "stream":
		var entries []redis.XMessage
		entries, err = client.XRange(ctx, key, "-", "+").Result()
		for _, e := range entries {
			for field, v := range e.Values {
				values = append(values, e.ID, field, v.(string))
			}
		}
	default:
		err = fmt.Errorf("a %s", k.Type)
	}
	for _, v := range values {
		k.Values = append(k.Values, encodeText(v))
	}
	return k, err
}

// load writes the keys as they were, as if it had been just now: whatever is a
// time moves on, and the receivers are those given, by role.
func (f *fixture) load(t *testing.T, client redis.UniversalClient, receivers map[string]*endpoint) {
	t.Helper()
	by := time.Since(f.Written).Truncate(time.Millisecond)
	var moved []string
	for role, s := range f.Subscribers {
		moved = append(moved, s.Server, receivers[role].URL)
	}
	addresses := strings.NewReplacer(moved...)
	for _, k := range f.Keys {
		args := make([]any, len(k.Values))
		for i, v := range k.Values {
			text, err := decodeText(v)
			if err != nil {
				t.Fatalf("%s: %v", k.Key, err)
			}
			args[i] = addresses.Replace(f.move(text, by))
		}
		if err := loadKey(t.Context(), client, k, args); err != nil {
			t.Fatalf("%s: %v", k.Key, err)
		}
	}
	for id, body := range f.Events {
		f.Events[id] = f.move(body, by)
	}
}

var (
	millis = regexp.MustCompile(`1\d{12}`)
	rfc    = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
)

// move shifts all times in a text that are within a day of the writing.
func (f *fixture) move(text string, by time.Duration) string {
	shifted := func(at time.Time) (time.Time, bool) {
		return at.Add(by), at.Sub(f.Written).Abs() < 24*time.Hour
	}
	text = millis.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64)
		if at, ok := shifted(time.UnixMilli(n)); ok {
			return strconv.FormatInt(at.UnixMilli(), 10)
		}
		return s
	})
	return rfc.ReplaceAllStringFunc(text, func(s string) string {
		at, err := time.Parse(time.RFC3339Nano, s)
		if at, ok := shifted(at); ok && err == nil {
			return at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
		return s
	})
}

func loadKey(ctx context.Context, client redis.UniversalClient, k fixtureKey, values []any) error {
	pipe := client.TxPipeline()
	switch k.Type {
	case "string":
		pipe.Set(ctx, k.Key, values[0], 0)
	case "list":
		pipe.RPush(ctx, k.Key, values...)
	case "set":
		pipe.SAdd(ctx, k.Key, values...)
	case "hash":
		pipe.HSet(ctx, k.Key, values...)
	case "zset":
		for i := 0; i < len(values); i += 2 {
			pipe.Do(ctx, "ZADD", k.Key, values[i+1], values[i])
		}
	case "stream":
		for i := 0; i < len(values); i += 3 {
			pipe.Do(ctx, "XADD", k.Key, values[i], values[i+1], values[i+2])
		}
	default:
		return fmt.Errorf("a %s", k.Type)
	}
	if k.TTL > 0 {
		pipe.PExpire(ctx, k.Key, time.Duration(k.TTL)*time.Millisecond)
	}
	_, err := pipe.Exec(ctx)
	return err
}
