package health_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events/operational"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	*subscriberstest.Bundle

	healths *health.Store
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupOn(redistest.New(t))
}

func setupOn(client redis.UniversalClient) *bundle {
	b := &bundle{Bundle: subscriberstest.On(client, subscribers.StoreOptions{MaxPerCompany: 1 << 20})}
	told := operational.New(operational.Options{Client: client, Retention: 7 * 24 * time.Hour, Now: b.Now})
	b.healths = health.New(health.Options{Client: client, Operational: told, Now: b.Now})
	return b
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
