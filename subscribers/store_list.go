package subscribers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
)

const listChunk = 32 // companies read in one round trip

// List returns one page, without secrets, and how many match in all. A
// company's subscribers come oldest first, then by uuid; companies come in an
// order of their own that never changes. Listing all companies reads every
// subscriber that the page or a filter needs, a few companies at a time, and
// keeps only the page.
func (s *Store) List(ctx context.Context, f Filter) ([]Subscriber, int, error) {
	p, err := newPage(f)
	if err != nil {
		return nil, 0, err
	}
	if f.Company != nil {
		err = s.listCompanies(ctx, []uuid.UUID{*f.Company}, p)
		return p.items, p.total, err
	}
	for partition := range events.Partitions {
		if err := s.listPartition(ctx, partition, p); err != nil {
			return nil, 0, err
		}
	}
	return p.items, p.total, nil
}

func (s *Store) listPartition(ctx context.Context, partition int, p *page) error {
	members, err := s.opts.Client.SMembers(ctx, companiesKey(partition)).Result()
	if err != nil {
		return fmt.Errorf("list companies: %w", err)
	}
	slices.Sort(members)
	for chunk := range slices.Chunk(members, listChunk) {
		companies := make([]uuid.UUID, len(chunk))
		for i, member := range chunk {
			if companies[i], err = uuid.Parse(member); err != nil {
				return fmt.Errorf("list companies: %w", err)
			}
		}
		if err := s.listCompanies(ctx, companies, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) listCompanies(ctx context.Context, companies []uuid.UUID, p *page) error {
	hashes := make([]*redis.MapStringStringCmd, len(companies))
	_, err := s.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, company := range companies {
			hashes[i] = pipe.HGetAll(ctx, CompanyKey(company))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list subscribers: %w", err)
	}
	for i, company := range companies {
		all, _, err := decodeAll(company, hashes[i].Val())
		if err != nil {
			return err
		}
		p.add(all)
	}
	return nil
}
