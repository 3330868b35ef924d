package listing

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

// Numbers of companies that one round trip reads.
const (
	readChunk  = 32
	countChunk = 1000
)

// List returns one page, without secrets, and how many match in all. A
// company's subscribers come oldest first, then by uuid; companies come in an
// order of their own that never changes. Listing all companies counts every
// company's subscribers (with a filter: reads them), some companies at a time,
// and keeps only the page. A damaged subscriber counts, and is left out.
func (r *Reader) List(ctx context.Context, f Filter) ([]subscribers.Subscriber, int, error) {
	p, err := newPage(f)
	if err != nil {
		return nil, 0, err
	}
	if f.Company != nil {
		err = r.readCompanies(ctx, []uuid.UUID{*f.Company}, p)
		return p.items, p.total, err
	}
	for partition := range partition.Count {
		if err := r.listPartition(ctx, partition, p); err != nil {
			return nil, 0, err
		}
	}
	return p.items, p.total, nil
}

func (r *Reader) listPartition(ctx context.Context, partition int, p *page) error {
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
	read, size := r.readCompanies, readChunk
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
func (r *Reader) countCompanies(ctx context.Context, companies []uuid.UUID, p *page) error {
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

func (r *Reader) readCompanies(ctx context.Context, companies []uuid.UUID, p *page) error {
	hashes := r.readHashes(ctx, companies)
	for i, company := range companies {
		hash, err := hashes[i].Result()
		if err != nil {
			return fmt.Errorf("list subscribers: %w", err)
		}
		all, _ := subscribers.DecodeAll(r.vault, company, hash)
		p.add(all)
	}
	return nil
}
