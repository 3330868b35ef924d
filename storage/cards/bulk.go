package cards

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
)

// CreateCardJob stores 1 to 500 requests as a job, all or none. It checks the shape of every item;
// CreateNextCard applies the business rules. A second call with the same once returns the job as
// the first call stored it. The error may be ErrKeyReused or an *invalid.Error, in which the path of
// an item's field begins with /cardsRequests/index.
func (s *Store) CreateCardJob(ctx context.Context, company uuid.UUID, requests []Request, once Once) (Job, error) {
	var row jobRow
	var items []itemRow
	err := s.db.Write(ctx, "create card job", func(ctx context.Context, tx bun.Tx) error {
		p, err := findPolicy(ctx, tx, company)
		if err != nil {
			return err
		}
		if err := checkRequests(requests, p.Currency); err != nil {
			return err
		}
		created, again, err := s.claim(ctx, tx, once)
		if err != nil {
			return err
		}
		row = jobRow{UUID: created.UUID, CompanyUUID: storage.Key(company), CreatedAt: created.CreatedAt, Pending: len(requests)}
		items = newItems(row, requests, p.Currency)
		if again {
			return nil
		}
		if _, err := tx.NewInsert().Model(&row).Exec(ctx); err != nil {
			return err
		}
		_, err = tx.NewInsert().Model(&items).Exec(ctx)
		return err
	})
	if err != nil {
		return Job{}, err
	}
	return newJob(row, items), nil
}

func newItems(job jobRow, requests []Request, currency string) []itemRow {
	items := make([]itemRow, len(requests))
	for i, r := range requests {
		items[i] = itemRow{
			order: r.order(currency), JobUUID: job.UUID, Index: i, CompanyUUID: job.CompanyUUID, CreatedAt: job.CreatedAt,
			RequestUUID: storage.Key(requestUUID(uuid.UUID(job.UUID), i)), Status: ItemPending,
		}
	}
	return items
}

// CardJob reads a job of the company, or returns storage.ErrNotFound.
func (s *Store) CardJob(ctx context.Context, company, id uuid.UUID) (Job, error) {
	var row jobRow
	var items []itemRow
	err := s.db.Snapshot(ctx, "read card job", func(ctx context.Context, db bun.IDB) error {
		err := db.NewSelect().Model(&row).Where("uuid = ?", storage.Key(id)).Where("company_uuid = ?", storage.Key(company)).Scan(ctx)
		if err != nil {
			return err
		}
		return db.NewSelect().Model(&items).Where("job_uuid = ?", storage.Key(id)).OrderExpr("item_index").Scan(ctx)
	})
	if err != nil {
		return Job{}, err
	}
	return newJob(row, items), nil
}

// itemRetryWait is the wait before a failed item is retried.
const itemRetryWait = 15 * time.Second

// CreateNextCard finishes one PENDING item, and reports whether there was one. In one transaction it
// locks the item, creates the card or finds the reason for an error, and writes the outcome and its
// outbox row. So no two replicas work on one item, and after a crash the item is still PENDING.
//
// Each Store serves companies in turn, and the items of a company in order. A failed item is retried
// after 15 s. The other items do not wait for it.
func (s *Store) CreateNextCard(ctx context.Context) (item Item, found bool, err error) {
	now := s.now()
	var row itemRow
	var job jobRow
	err = s.db.Write(ctx, "create next card", func(ctx context.Context, tx bun.Tx) error {
		var err error
		if row, err = s.nextItem(ctx, tx, now); err != nil || !row.claimed() {
			return err
		}
		job, err = row.finish(ctx, tx, now)
		return err
	})
	if err != nil {
		return Item{}, row.claimed(), errors.Join(err, s.postpone(ctx, &row, now.Add(itemRetryWait)))
	}
	item = row.item()
	if job.FinishedAt != nil {
		item.JobTook = new(job.FinishedAt.Sub(job.CreatedAt.Time))
	}
	return item, row.claimed(), nil
}

// nextItem locks the first item that is neither locked nor waiting for its next try, of the companies in
// turn after the last served one. If there is no such item, it returns a row that is not claimed.
func (s *Store) nextItem(ctx context.Context, tx bun.Tx, now time.Time) (itemRow, error) {
	if err := disableSort(ctx, tx); err != nil {
		return itemRow{}, err
	}
	var last storage.Key
	if served := s.served.Load(); served != nil {
		last = *served
	}
	for _, companies := range []string{"company_uuid > ?", "company_uuid <= ?"} {
		var row itemRow
		err := storage.Locked(nextItemQuery(tx, &row, companies, last, now), "SKIP LOCKED").Scan(ctx)
		if err == nil {
			s.served.Store(&row.CompanyUUID)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return row, err
		}
	}
	return itemRow{}, nil
}

func nextItemQuery(db bun.IDB, row *itemRow, companies string, last storage.Key, now time.Time) *bun.SelectQuery {
	return db.NewSelect().Model(row).Where("status = ?", ItemPending).Where(companies, last).
		Where("retry_at IS NULL OR retry_at <= ?", now.UnixMilli()).
		OrderExpr("company_uuid, created_at, job_uuid, item_index").Limit(1)
}

// disableSort disables sorting for the transaction. PostgreSQL has no statistics of a newly filled
// table and would sort all PENDING items to find the first one.
func disableSort(ctx context.Context, tx bun.Tx) error {
	if !storage.IsPostgres(tx) {
		return nil
	}
	_, err := tx.ExecContext(ctx, "SET LOCAL enable_sort = off")
	return err
}

// claimed reports whether nextItem found an item.
func (r *itemRow) claimed() bool { return r.RequestUUID != storage.Key{} }

// postpone sets the time of the next attempt of a failed item.
func (s *Store) postpone(ctx context.Context, r *itemRow, until time.Time) error {
	if !r.claimed() {
		return nil
	}
	return s.db.Write(ctx, "postpone card item", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewUpdate().Model(r).Set("retry_at = ?", until.UnixMilli()).WherePK().Where("status = ?", ItemPending).Exec(ctx)
		return err
	})
}

// finish creates the item's card or finds the reason for an error, writes the outcome and its outbox
// row, and returns the job. It changes the job last, since this locks the job's row against the
// other items.
func (r *itemRow) finish(ctx context.Context, tx bun.Tx, now time.Time) (job jobRow, err error) {
	at := storage.At(now)
	if err := r.createCard(ctx, tx, at); err != nil {
		return job, err
	}
	r.FinishedAt = &at
	_, err = tx.NewUpdate().Model(r).Column("status", "card_uuid", "error_code", "error_message", "finished_at").
		WherePK().Exec(ctx)
	if err != nil {
		return job, err
	}
	out := outboxRow{RequestUUID: r.RequestUUID, CompanyUUID: r.CompanyUUID, JobUUID: r.JobUUID, Index: r.Index, FinishedAt: at}
	if _, err = tx.NewInsert().Model(&out).Exec(ctx); err != nil {
		return job, err
	}
	job.UUID = r.JobUUID
	_, err = tx.NewUpdate().Model(&job).WherePK().Set("pending = pending - 1").
		Set("finished_at = CASE WHEN pending = 1 THEN ? END", at).Returning("*").Exec(ctx)
	return job, err
}

func (r *itemRow) createCard(ctx context.Context, tx bun.Tx, at storage.Time) error {
	p, err := findPolicy(ctx, tx, uuid.UUID(r.CompanyUUID))
	if err != nil {
		return err
	}
	card := newRow(storage.Key(cardUUID(uuid.UUID(r.RequestUUID))), r.CompanyUUID, r.order, p, at)
	switch err := insert(ctx, tx, p, &card); {
	case errors.Is(err, ErrUserNotFound):
		r.fail("USER_NOT_FOUND", err)
	case errors.Is(err, ErrThresholdExceedsLimit):
		r.fail("THRESHOLD_EXCEEDS_LIMIT", err)
	case err != nil:
		return err
	default:
		r.Status, r.CardUUID = ItemCreated, &card.UUID
	}
	return nil
}

func (r *itemRow) fail(code string, err error) {
	r.Status, r.ErrorCode, r.ErrorMessage = ItemError, code, err.Error()
}

// NextOutcomes lists finished items whose event has not been published yet, at most limit, in the
// order in which they finished. All are of one company: the first one after the given company.
func (s *Store) NextOutcomes(ctx context.Context, after uuid.UUID, limit int) ([]Item, error) {
	var rows []itemRow
	err := s.db.Query(ctx, "list pending outcomes", func(ctx context.Context, db bun.IDB) error {
		return outcomesQuery(db, &rows, after, limit).Scan(ctx)
	})
	items := make([]Item, len(rows))
	for i := range rows {
		items[i] = rows[i].item()
	}
	return items, err
}

func outcomesQuery(db bun.IDB, rows *[]itemRow, after uuid.UUID, limit int) *bun.SelectQuery {
	next := db.NewSelect().Table("card_outbox").Column("company_uuid").
		Where("company_uuid > ?", storage.Key(after)).OrderExpr("company_uuid").Limit(1)
	return db.NewSelect().Model(rows).ColumnExpr("i.*").
		Join("JOIN card_outbox AS o ON o.job_uuid = i.job_uuid AND o.item_index = i.item_index").
		Where("o.company_uuid = (?)", next).
		OrderExpr("o.finished_at, o.request_uuid").Limit(int64(limit))
}

// MarkPublished removes outcomes from the outbox and returns the outcomes that this call removed.
// Repeated and concurrent calls do not return the same outcome twice.
func (s *Store) MarkPublished(ctx context.Context, requests ...uuid.UUID) (map[uuid.UUID]bool, error) {
	marked := map[uuid.UUID]bool{}
	if len(requests) == 0 {
		return marked, nil
	}
	err := s.db.Write(ctx, "mark published", func(ctx context.Context, tx bun.Tx) error {
		clear(marked)
		var taken []storage.Key
		_, err := tx.NewDelete().Model((*outboxRow)(nil)).Where("request_uuid IN ?", bun.Tuple(storage.Keys(requests))).
			Returning("request_uuid").Exec(ctx, &taken)
		for _, id := range taken {
			marked[uuid.UUID(id)] = true
		}
		return err
	})
	return marked, err
}

// PendingItems counts the PENDING items of all jobs.
func (s *Store) PendingItems(ctx context.Context) (n int, err error) {
	err = s.db.Query(ctx, "count pending items", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Table("card_job_items").ColumnExpr("count(*)").Where("status = ?", ItemPending).Scan(ctx, &n)
	})
	return n, err
}

const (
	jobLifetime = 30 * 24 * time.Hour // how long a job is kept after its creation
	maxPurge    = 100                 // jobs, and as many keys, in one call
)

// Purge deletes jobs that are older than 30 days and whose items are all finished and published. It
// also deletes Idempotency-Keys that are older than 24 h. It returns the number of deleted rows;
// 0 means that none are left.
func (s *Store) Purge(ctx context.Context) (n int64, err error) {
	err = s.db.Write(ctx, "purge card jobs", func(ctx context.Context, tx bun.Tx) error {
		n = 0
		jobs := tx.NewSelect().TableExpr("card_jobs AS j").Column("uuid").
			Where("created_at <= ?", storage.At(s.now().Add(-jobLifetime))).Where("finished_at IS NOT NULL").
			Where("NOT EXISTS (SELECT 1 FROM card_outbox AS o WHERE o.job_uuid = j.uuid)").OrderExpr("created_at").Limit(maxPurge)
		keys := tx.NewSelect().Table("creations").Column("key_hash").
			Where("created_at <= ?", storage.At(s.now().Add(-keyLifetime))).OrderExpr("created_at").Limit(maxPurge)
		for _, q := range []*bun.DeleteQuery{
			tx.NewDelete().Table("card_jobs").Where("uuid IN (?)", jobs),
			tx.NewDelete().Table("creations").Where("key_hash IN (?)", keys),
		} {
			result, err := q.Exec(ctx)
			if err != nil {
				return err
			}
			rows, err := result.RowsAffected()
			if n += rows; err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}
