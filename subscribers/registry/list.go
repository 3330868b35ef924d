package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/invalid"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
)

// Numbers of companies that one round trip reads. They bound the memory of the answers.
const (
	loadChunk  = 128
	listChunk  = 32
	countChunk = 1000
)

// decoder decodes the hash of a company.
type decoder func(company uuid.UUID, hash map[string]string) (all []*subscribers.Subscriber, version int64)

// read reads all subscribers of companies with their version in one pipeline, oldest first, also
// disabled ones. It calls done for each company. A company that cannot be read does not affect the
// others.
func (r *Registry) read(ctx context.Context, companies []uuid.UUID, decode decoder, done func(company uuid.UUID, all []*subscribers.Subscriber, version int64, err error)) {
	hashes, _ := pipeline.Each(ctx, r.client, companies, func(pipe redis.Pipeliner, company uuid.UUID) *redis.MapStringStringCmd {
		return pipe.HGetAll(ctx, layout.CompanyKey(company))
	}) // each command has its own error
	for i, reply := range hashes {
		hash, err := reply.Result()
		if err != nil {
			done(companies[i], nil, 0, fmt.Errorf("load subscribers: %w", err))
			continue
		}
		all, version, err := decode.safely(companies[i], hash)
		done(companies[i], all, version, err)
	}
}

// safely returns a panic as an error. Otherwise the panic would end this replica, and then each replica
// that loads the company.
func (d decoder) safely(company uuid.UUID, hash map[string]string) (all []*subscribers.Subscriber, version int64, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("decode subscribers: panic: %v", cause)
		}
	}()
	all, version = d(company, hash)
	return all, version, nil
}

// complete decrypts secrets. Its version is that of the copies.
func (r *Registry) complete(company uuid.UUID, hash map[string]string) ([]*subscribers.Subscriber, int64) {
	return subscribers.DecodeAll(r.keys, company, hash)
}

// shown decrypts nothing, and has no version.
func shown(company uuid.UUID, hash map[string]string) ([]*subscribers.Subscriber, int64) {
	return subscribers.DecodeShown(company, hash), 0
}

// List returns one page, without secrets, and the number of all subscribers that match. Companies
// have a fixed order. The subscribers of a company are in the order of their creation, then by uuid.
// A list of all companies counts the subscribers of each company (with a filter it reads them), some
// companies at a time. A damaged subscriber is counted, but not on the page.
func (r *Registry) List(ctx context.Context, f Filter) ([]subscribers.Subscriber, int, error) {
	p, err := newPage(f)
	if err != nil {
		return nil, 0, err
	}
	if f.Company != nil {
		all, err := r.Current(ctx, *f.Company)
		p.add(all)
		return p.items, p.total, err
	}
	for partition := range partition.Count {
		if err := r.listPartition(ctx, partition, p); err != nil {
			return nil, 0, err
		}
	}
	return p.items, p.total, nil
}

func (r *Registry) listPartition(ctx context.Context, partition int, p *page) error {
	members, err := r.client.SMembers(ctx, layout.CompaniesKey(partition)).Result()
	if err != nil {
		return fmt.Errorf("list companies: %w", err)
	}
	slices.Sort(members)
	companies := make([]uuid.UUID, len(members))
	for i, member := range members {
		if companies[i], err = uuid.Parse(member); err != nil {
			return fmt.Errorf("list companies: %w", err)
		}
	}
	read, size := r.readCompanies, listChunk
	if p.matchesAll() {
		read, size = r.countCompanies, countChunk
	}
	for chunk := range slices.Chunk(companies, size) {
		if err := read(ctx, chunk, p); err != nil {
			return err
		}
	}
	return nil
}

// countCompanies is readCompanies for a page without filters: it reads only the companies that
// the page shows.
func (r *Registry) countCompanies(ctx context.Context, companies []uuid.UUID, p *page) error {
	counts, err := pipeline.Each(ctx, r.client, companies, func(pipe redis.Pipeliner, company uuid.UUID) *redis.IntCmd {
		return pipe.HLen(ctx, layout.URLsKey(company))
	})
	if err != nil {
		return fmt.Errorf("count subscribers: %w", err)
	}
	for i := range companies {
		if p.skip(int(counts[i].Val())) {
			continue
		}
		if err := r.readCompanies(ctx, companies[i:i+1], p); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) readCompanies(ctx context.Context, companies []uuid.UUID, p *page) (err error) {
	r.read(ctx, companies, shown, func(_ uuid.UUID, all []*subscribers.Subscriber, _ int64, failed error) {
		err = errors.Join(err, failed)
		p.add(all)
	})
	return err
}

const defaultSize = 20

// Filter selects subscribers. Zero and nil fields match all. An invalid CallbackURL gives an
// *invalid.Error.
type Filter struct {
	Company *uuid.UUID // nil lists all companies
	UUID    *uuid.UUID
	Name    string // part of the name, in any letter case
	// CallbackURL is the whole URL, normalised before it is compared.
	CallbackURL string
	Enabled     *bool
	Events      []string           // any of these
	Among       map[uuid.UUID]bool // one of these; nil: any
	Page        int                // from 0
	Size        int                // 0 means 20
}

type page struct {
	Filter

	items []subscribers.Subscriber
	total int
}

func newPage(f Filter) (*page, error) {
	var problems invalid.Error
	if f.CallbackURL != "" {
		f.CallbackURL = callback.Any.Normalize(&problems, f.CallbackURL)
	}
	f.Size = cmp.Or(f.Size, defaultSize)
	if len(f.Events) == 0 {
		f.Events = nil // for matchesAll
	}
	f.Name = strings.ToLower(f.Name)
	return &page{Filter: f}, problems.OrNil()
}

func (p *page) add(all []*subscribers.Subscriber) {
	for _, s := range all {
		if !p.matches(s) {
			continue
		}
		if p.total/p.Size == p.Page && s.Locked == nil {
			p.items = append(p.items, s.WithoutSecrets()) // it may be shared
		}
		p.total++
	}
}

// skip counts n matching subscribers if none of them is on the page. It reports whether it did.
func (p *page) skip(n int) bool {
	if n > 0 && p.total/p.Size <= p.Page && (p.total+n-1)/p.Size >= p.Page {
		return false
	}
	p.total += n
	return true
}

func (p *page) matchesAll() bool {
	return reflect.DeepEqual(p.Filter, Filter{Page: p.Page, Size: p.Size})
}

func (p *page) matches(s *subscribers.Subscriber) bool {
	return (p.Among == nil || p.Among[s.UUID]) &&
		(p.UUID == nil || *p.UUID == s.UUID) &&
		(p.Enabled == nil || *p.Enabled == s.Enabled) &&
		(p.CallbackURL == "" || p.CallbackURL == s.CallbackURL) &&
		strings.Contains(strings.ToLower(s.Name), p.Name) &&
		(len(p.Events) == 0 || slices.ContainsFunc(p.Events, func(asked string) bool { return wantsAny(s, asked) }))
}

// wantsAny reports whether a subscriber wants a type, or any type that matches a pattern.
func wantsAny(s *subscribers.Subscriber, asked string) bool {
	start, star := strings.CutSuffix(asked, "*")
	if !star {
		return s.Wants(asked)
	}
	return slices.ContainsFunc(s.Events, func(pattern string) bool {
		other, wide := strings.CutSuffix(pattern, "*")
		return strings.HasPrefix(other, start) || wide && strings.HasPrefix(start, other)
	})
}
