package subscribers

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"spendhook/events/eventtype"
	"spendhook/events/operational"
	"spendhook/internal/clock"
	"spendhook/internal/invalid"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/seal"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
)

var (
	//go:embed lua/create.lua
	createLua string
	//go:embed lua/update.lua
	updateLua string
	//go:embed lua/delete.lua
	deleteLua string
	//go:embed lua/pause.lua
	pauseLua string
	//go:embed lua/reseal.lua
	resealLua string
	//go:embed lua/forget.lua
	forgetLua string

	createScript = queues.Script(layout.VersionLua()+layout.CheckLua+createLua, false)
	updateScript = queues.Script(layout.VersionLua()+operational.Lua()+layout.CheckLua+updateLua, true)
	deleteScript = queues.Script(layout.VersionLua()+layout.CheckLua+deleteLua, true)
	pauseScript  = queues.Script(layout.CheckLua+pauseLua, true)
	resealScript = layout.NewScript(layout.VersionLua() + resealLua)
	forgetScript = layout.NewScript(layout.VersionLua() + forgetLua)
)

// StoreOptions are what a Store needs. Client and Keyring are required.
type StoreOptions struct {
	Client    redis.UniversalClient
	Keyring   *seal.Keyring        // of the secrets that Redis keeps
	Policy    callback.Policy      // of callback URLs
	Catalogue *eventtype.Catalogue // the event names that may be subscribed to; nil allows any

	// Operational encodes the operational events about subscribers. The scripts of this package
	// write them. nil: none.
	Operational *operational.Store

	NoContacts  bool // none may be added: without public_url, links in messages to them lead nowhere
	Mail        bool // mail addresses may be added as contacts
	MaxContacts int  // of a subscriber; 0 means 5

	Challenge     Challenge     // which callback URLs must be verified; "" means ChallengeOff
	MaxPerCompany int           // subscribers of one company; 0 means 1,000
	SecretOverlap time.Duration // how long deliveries are also signed with a rotated secret; 0 means 24 h
	Retention     time.Duration // how long events are kept, within which a RetrySchedule must end; 0 means 7 days

	Registerer prometheus.Registerer // nil: changes of signing keys are not shown

	Now func() time.Time // nil means time.Now
}

// The changes of signing keys, values of the label of spendhook_signing_key_changes_total.
const (
	keysRotated = "rotated"
	keyRevoked  = "revoked"
)

// Store keeps subscribers in Redis. Its methods are safe for concurrent use. They block for round
// trips to Redis and, when a callback URL is set, for callback.Policy.Resolve. Invalid input is an
// *invalid.Error. Any error except that and the sentinels of this package means that Redis failed.
// Every change is one atomic script and raises the company's version.
type Store struct {
	opts  StoreOptions
	clock func() time.Time // of the changes that are listed; nil: Redis's
	codec codec

	keyChanges *prometheus.CounterVec
}

// NewStore returns a Store; it does not talk to Redis yet.
func NewStore(opts StoreOptions) *Store {
	opts.MaxPerCompany = cmp.Or(opts.MaxPerCompany, 1000)
	opts.SecretOverlap = cmp.Or(opts.SecretOverlap, 24*time.Hour)
	opts.Retention = cmp.Or(opts.Retention, 7*24*time.Hour)
	opts.MaxContacts = cmp.Or(opts.MaxContacts, 5)
	given := opts.Now
	opts.Now = clock.Or(given)
	s := &Store{opts: opts, clock: given, codec: codec{opts.Keyring}}
	s.keyChanges = promauto.With(opts.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_signing_key_changes_total", Help: "Changes of the signing keys of companies: all keys of a company rotated, or one revoked.",
	}, []string{"change"})
	s.keyChanges.WithLabelValues(keysRotated)
	s.keyChanges.WithLabelValues(keyRevoked)
	return s
}

// now returns the time with the precision of stored times.
func (s *Store) now() time.Time { return s.opts.Now().UTC().Truncate(time.Millisecond) }

// Create adds a subscriber with a new secret. Where its URL must be verified, its deliveries wait until then.
// ErrConflict and ErrQuota change nothing.
func (s *Store) Create(ctx context.Context, company uuid.UUID, in Settings) (Subscriber, error) {
	var problems invalid.Error
	if company == uuid.Nil {
		problems.Add("companyUuid", "REQUIRED", "is required")
	}
	in.require(&problems)
	if err := s.check(ctx, &problems, &in); err != nil {
		return Subscriber{}, err
	}
	now := s.now()
	sub := Subscriber{
		UUID: uuid.New(), CompanyUUID: company, Enabled: true, CreatedAt: now, UpdatedAt: now,
		Secrets: []SigningSecret{{Key: newSecret()}},
	}
	if s.opts.Challenge.on() {
		sub.Verification = &Verification{State: StateUnverified}
	}
	in.apply(&problems, &sub, now)
	if err := problems.OrNil(); err != nil {
		return Subscriber{}, err
	}
	err := s.insert(ctx, &sub)
	return sub, err
}

func (s *Store) insert(ctx context.Context, sub *Subscriber) error {
	company := sub.CompanyUUID
	raw, err := s.codec.encode(sub, "")
	if err != nil {
		return err
	}
	signing, err := s.codec.sealKeys(company, firstKeys(s.now()))
	if err != nil {
		return err
	}
	p := partition.Of(company)
	keys := append(queues.Keys(p), layout.CompanyKey(company), layout.URLsKey(company), layout.CompaniesKey(p))
	args := []any{sub.UUID.String(), sub.CallbackURL, raw, company.String(), s.opts.MaxPerCompany, partition.Prefix(p), signing}
	reply, err := createScript.Run(ctx, s.opts.Client, keys, append(append(args, sub.serving()...), len(sub.Contacts))...).Text()
	switch {
	case err != nil:
		return fmt.Errorf("create subscriber: %w", err)
	case reply == "TAKEN":
		return ErrConflict
	case reply == "QUOTA":
		return ErrQuota
	}
	sub.Revision = revisionOf(raw)
	return nil
}

// Get returns a subscriber of the company, or ErrNotFound.
func (s *Store) Get(ctx context.Context, company, id uuid.UUID) (Subscriber, error) {
	raw, err := s.read(ctx, company, id)
	if err != nil {
		return Subscriber{}, err
	}
	return s.codec.decode(company, id, raw)
}

func (s *Store) read(ctx context.Context, company, id uuid.UUID) (string, error) {
	return s.field(ctx, layout.CompanyKey(company), id.String())
}

func (s *Store) field(ctx context.Context, key, name string) (string, error) {
	text, err := s.opts.Client.HGet(ctx, key, name).Result()
	if errors.Is(err, redis.Nil) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read subscriber: %w", err)
	}
	return text, nil
}

// Delete removes a subscriber, its own egress certificate and its health. The dispatcher then cancels its pending deliveries.
// The error may be ErrNotFound, or ErrChanged when the subscriber has none of the given revisions.
func (s *Store) Delete(ctx context.Context, company, id uuid.UUID, revisions ...string) error {
	if _, err := s.read(ctx, company, id); err != nil {
		return err
	}
	p := partition.Of(company)
	keys := append(queues.Keys(p), layout.CompanyKey(company), layout.URLsKey(company), layout.CompaniesKey(p), layout.HealthKey(company, id))
	deleted, err := deleteScript.Run(ctx, s.opts.Client, keys,
		id.String(), company.String(), partition.Prefix(p), strings.Join(revisions, ",")).Int()
	switch {
	case err != nil:
		return fmt.Errorf("delete subscriber: %w", err)
	case deleted < 0:
		return ErrChanged
	}
	return nil
}

// Forget removes what is known of the contacts of a company whose subscribers were deleted. It removes the signing keys,
// too, unless the company has subscribers again.
func (s *Store) Forget(ctx context.Context, company uuid.UUID) error {
	told := layout.ToldKey(partition.Of(company))
	pairs := s.opts.Client.HScan(ctx, told, 0, company.String()+"/*", 1000).Iterator()
	err := s.opts.Client.Del(ctx, layout.ContactsKey(company)).Err()
	for err == nil && pairs.Next(ctx) {
		err = s.opts.Client.HDel(ctx, told, pairs.Val()).Err() // a value is no field
	}
	if err = cmp.Or(err, pairs.Err()); err != nil {
		return fmt.Errorf("forget contacts: %w", err)
	}
	keys := []string{layout.CompanyKey(company), layout.URLsKey(company)}
	if err := forgetScript.Run(ctx, s.opts.Client, keys, layout.SigningKeysField).Err(); err != nil {
		return fmt.Errorf("forget signing keys: %w", err)
	}
	return nil
}

func (s *Store) findByURL(ctx context.Context, company uuid.UUID, normal string) (uuid.UUID, error) {
	id, err := s.field(ctx, layout.URLsKey(company), normal)
	if err != nil {
		return uuid.Nil, err
	}
	return uuid.Parse(id)
}
