package eventtype

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newStore(client redis.UniversalClient) *Store {
	return NewStore(client, nil, time.Now)
}

func names(list []Type) string {
	all := make([]string, len(list))
	for i, t := range list {
		all[i] = t.Name
	}
	return strings.Join(all, " ")
}

const builtinNames = "CARD_CREATION_REQUEST_CREATED CARD_CREATION_REQUEST_ERROR DELIVERY_DEAD PAYMENT_PAID SUBSCRIBER_DISABLED SUBSCRIBER_FAILING SUBSCRIBER_RECOVERED"

// A stored type is listed and read by every replica until it is removed. Then the entry of the
// catalogue is shown again.
func TestTypesAreKept(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.New(t)
	s, other := newStore(client), newStore(client)
	if list, err := s.List(ctx); err != nil || names(list) != builtinNames {
		t.Errorf("%s, %v", names(list), err)
	}
	paid := Type{Name: "PAYMENT_PAID", Description: "Money has moved.", Schema: jsontext.Value(`{ "type": "object" }`), Example: jsontext.Value(`{"amount": "12.50"}`)}
	kept, added, err := s.Put(ctx, paid)
	if err != nil || !added || string(kept.Schema) != `{"type":"object"}` || string(kept.Example) != `{"amount":"12.50"}` {
		t.Fatalf("%+v, %v, %v", kept, added, err)
	}
	if got, err := other.Get(ctx, "PAYMENT_PAID"); err != nil || got.Description != paid.Description {
		t.Errorf("%+v, %v", got, err)
	}
	if _, added, err := s.Put(ctx, Type{Name: "OTHER", Description: "Another one."}); err != nil || !added {
		t.Error(added, err)
	}
	for _, store := range []*Store{s, newStore(client)} {
		if list, err := store.List(ctx); err != nil || names(list) != strings.Replace(builtinNames, "PAYMENT", "OTHER PAYMENT", 1) {
			t.Errorf("%s, %v", names(list), err)
		}
	}
	if _, added, err := other.Put(ctx, Type{Name: "OTHER", Description: "Said better."}); err != nil || added {
		t.Error(added, err)
	}
	for _, name := range []string{"PAYMENT_PAID", "OTHER"} {
		if err := s.Remove(ctx, name); err != nil {
			t.Error(err)
		}
		if err := s.Remove(ctx, name); !errors.Is(err, ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
	}
	if got, err := s.Get(ctx, "PAYMENT_PAID"); err != nil || got.Description == paid.Description {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Get(ctx, "OTHER"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if left := client.HGetAll(ctx, typesKey).Val(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// The daemon's own types have a schema that their example fulfils, and cannot be changed.
func TestOwnTypesAreFixed(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), newStore(redistest.New(t))
	if len(builtin()) != 7 {
		t.Errorf("%d types are built in", len(builtin()))
	}
	for name, r := range builtin() {
		if name == "PAYMENT_PAID" { // anyone may document it
			continue
		}
		got, err := s.Get(ctx, name)
		if err != nil || !got.Fixed || len(got.Schema) == 0 || len(got.Example) == 0 || got.Description == "" {
			t.Errorf("%+v, %v", got, err)
		}
		if !fulfils(t, r.Schema, string(r.Example)) {
			t.Errorf("%s: its example is not of its schema", name)
		}
		if fulfils(t, r.Schema, `{"companyUuid":1,"requestUuid":1}`) {
			t.Errorf("%s: its schema allows anything", name)
		}
	}
	for _, name := range []string{DeliveryDead, "CARD_CREATION_REQUEST_ERROR", "SUBSCRIBER_OF_LATER"} {
		if _, _, err := s.Put(ctx, Type{Name: name, Description: "Mine."}); !errors.Is(err, ErrFixed) {
			t.Errorf("put %s: %v", name, err)
		}
		if err := s.Remove(ctx, name); !errors.Is(err, ErrFixed) {
			t.Errorf("remove %s: %v", name, err)
		}
	}
}

func fulfils(t *testing.T, schema jsontext.Value, text string) bool {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaURL, doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile(schemaURL).Validate(value) == nil
}

// The bounds over all types hold. An existing type can still be replaced and removed.
func TestBoundsOverAllTypesHold(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.New(t)
	s := newStore(client)
	large := Type{Description: "x", Example: jsontext.Value(`{"a":"` + strings.Repeat("a", 60<<10) + `"}`)}
	n := 0
	for ; ; n++ {
		large.Name = fmt.Sprintf("L%d", n)
		if _, _, err := s.Put(ctx, large); errors.Is(err, ErrFull) {
			break
		} else if err != nil || n > 100 {
			t.Fatal(n, err)
		}
	}
	if n != maxBytes/(60<<10) {
		t.Errorf("%d of 60 KiB each", n)
	}
	large.Name = "L0"
	if _, added, err := s.Put(ctx, large); err != nil || added {
		t.Error(added, err)
	}
	if err := s.Remove(ctx, "L1"); err != nil {
		t.Error(err)
	}
	large.Name = "L1"
	if _, added, err := s.Put(ctx, large); err != nil || !added {
		t.Error(added, err)
	}
	client.Del(ctx, typesKey)
	for n = range maxTypes {
		if _, _, err := s.Put(ctx, Type{Name: fmt.Sprintf("N%d", n), Description: "x"}); err != nil {
			t.Fatal(n, err)
		}
	}
	if _, _, err := s.Put(ctx, Type{Name: "ONE_MORE", Description: "x"}); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	if _, _, err := s.Put(ctx, Type{Name: "N1", Description: "y"}); err != nil {
		t.Error(err)
	}
}

// A damaged type does not hide the others, and can be replaced.
func TestADamagedTypeHidesNoOthers(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.New(t)
	s := newStore(client)
	client.HSet(ctx, typesKey, "BROKEN", "{")
	if list, err := s.List(ctx); err != nil || names(list) != builtinNames {
		t.Errorf("%s, %v", names(list), err)
	}
	if _, err := s.Get(ctx, "BROKEN"); err == nil || errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, added, err := s.Put(ctx, Type{Name: "BROKEN", Description: "Mended."}); err != nil || added {
		t.Error(added, err)
	}
	if _, err := s.Get(ctx, "BROKEN"); err != nil {
		t.Error(err)
	}
}
