package session

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/cursor"
)

// maxOfOwner is how many links, and how many sessions, a company may have.
const maxOfOwner = 500

//go:embed lua/add.lua
var addLua string

var addScript = redis.NewScript(addLua)

// Store stores links and sessions in Redis. It is safe for concurrent use, also by several
// replicas.
type Store struct {
	client redis.UniversalClient
	now    func() time.Time
}

// NewStore returns a Store on the client, which it does not close. A nil now means time.Now.
func NewStore(client redis.UniversalClient, now func() time.Time) *Store {
	return &Store{client: client, now: clock.Or(now)}
}

// CreateLink creates a link that opens one session, within LinkLife. The error is ErrTooMany if the
// company has the maximum of links.
func (s *Store) CreateLink(ctx context.Context, g Grant) (Link, error) {
	secret, now := newSecret(), s.now()
	id, owner := idOf(secret).String(), ownerOf(g.Company)
	err := s.add(ctx, g, record{
		key: linkKey(id), owner: linksKey(owner), all: linksKey(owner), name: id, nameOfAll: id,
		prefix: linkKey(""), now: now, until: now.Add(LinkLife), idle: LinkLife,
	})
	if err != nil {
		return Link{}, fmt.Errorf("store the link: %w", err)
	}
	return Link{ID: idOf(secret), Secret: secret, ExpiresAt: now.Add(LinkLife)}, nil
}

// record has the keys and the times of a link or session that add stores.
type record struct {
	key, owner, all, name, nameOfAll, prefix string
	now, until                               time.Time
	idle                                     time.Duration
}

func (s *Store) add(ctx context.Context, what any, r record) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	added, err := addScript.Run(ctx, s.client, []string{r.key, r.owner, r.all}, text, r.now.UnixMilli(),
		r.until.UnixMilli(), r.idle.Milliseconds(), r.name, r.nameOfAll, maxOfOwner, r.prefix, MaxLifetime.Milliseconds()).Int()
	if err == nil && added == 0 {
		err = ErrTooMany
	}
	return err
}

// Peek returns the grant of a link without using up the link. The error is ErrNotFound when the
// link was used or has expired.
func (s *Store) Peek(ctx context.Context, secret string) (Grant, error) {
	return grantOf(s.client.Get(ctx, linkKey(idOf(secret).String())))
}

func grantOf(reply *redis.StringCmd) (g Grant, err error) {
	if err := load(reply, &g); err != nil {
		return Grant{}, fmt.Errorf("read the link: %w", err)
	}
	return g, nil
}

// Open uses up a link and begins its session. The secret is the value of the cookie. The error is
// ErrNotFound if the link was used or has expired. Of two concurrent requests one opens the
// session.
func (s *Store) Open(ctx context.Context, link string, v Visitor) (opened Session, secret string, err error) {
	g, err := s.Peek(ctx, link)
	if err != nil {
		return opened, "", err
	}
	secret, now := newSecret(), s.now()
	opened = Session{
		ID: idOf(secret), OpenedAt: now, ExpiresAt: g.expiry(now), IdleUntil: now.Add(IdleTime),
		Address: v.Address, Certificate: v.Certificate, Grant: g,
	}
	id, owner := opened.ID.String(), ownerOf(g.Company)
	if err := s.take(ctx, link, id); err != nil {
		return Session{}, "", err
	}
	err = s.add(ctx, opened, record{
		key: sessionKey(id), owner: sessionsKey(owner), all: allKey(), name: id, nameOfAll: owner + "/" + id,
		prefix: sessionKey(""), now: now, until: opened.ExpiresAt, idle: IdleTime,
	})
	if err != nil {
		return Session{}, "", fmt.Errorf("store the session: %w", err)
	}
	return opened, secret, nil
}

// take uses up a link for a session. The error is ErrNotFound if another session has it.
func (s *Store) take(ctx context.Context, link, session string) error {
	id := idOf(link).String()
	if err := s.once(ctx, takenKey(id), session, LinkLife); err != nil {
		return fmt.Errorf("use up the link: %w", err)
	}
	if err := s.client.Del(ctx, linkKey(id)).Err(); err != nil {
		return fmt.Errorf("delete the link: %w", err)
	}
	return nil
}

// once sets a key that has no value. The error is ErrNotFound if it has another value. The client may run the command
// twice, after a lost reply.
func (s *Store) once(ctx context.Context, key, value string, keep time.Duration) error {
	other, err := s.client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", Get: true, TTL: keep}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil
	case err == nil && other != value:
		return ErrNotFound
	}
	return err
}

// FinishLogin notes that a login has finished, and keeps that for the duration. The error is ErrNotFound if it had
// finished before.
func (s *Store) FinishLogin(ctx context.Context, id string, keep time.Duration) error {
	if err := s.once(ctx, loginKey(id), newSecret(), keep); err != nil {
		return fmt.Errorf("finish the login: %w", err)
	}
	return nil
}

// Find returns the session of a cookie. With use, the call restarts the idle time of the
// session. The error is ErrNotFound when the session does not exist or has ended.
func (s *Store) Find(ctx context.Context, secret string, use bool) (Session, error) {
	key := sessionKey(idOf(secret).String())
	if use {
		return s.decode(s.client.GetEx(ctx, key, IdleTime))
	}
	return s.decode(s.client.Get(ctx, key))
}

func (s *Store) decode(reply *redis.StringCmd) (found Session, err error) {
	if err := load(reply, &found); err != nil {
		return Session{}, fmt.Errorf("read the session: %w", err)
	}
	if !s.now().Before(found.ExpiresAt) {
		return Session{}, ErrNotFound
	}
	return found, nil
}

// load decodes a record. The error is ErrNotFound when there is none.
func load(reply *redis.StringCmd, into any) error {
	text, err := reply.Bytes()
	if errors.Is(err, redis.Nil) {
		return ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// End ends a session. The error is ErrNotFound if the session does not exist, belongs to another
// company than the given one, or has a link that another asker than the given one created.
func (s *Store) End(ctx context.Context, company *uuid.UUID, id uuid.UUID, asker *Asker) (Session, error) {
	found, err := s.decode(s.client.Get(ctx, sessionKey(id.String())))
	if err != nil {
		return Session{}, err
	}
	owner := ownerOf(found.Company)
	if company != nil && owner != ownerOf(company) || asker != nil && !found.Asker.sameAs(asker) {
		return Session{}, ErrNotFound
	}
	pipe := s.client.TxPipeline()
	pipe.Del(ctx, sessionKey(id.String()))
	pipe.ZRem(ctx, sessionsKey(owner), id.String())
	pipe.ZRem(ctx, allKey(), owner+"/"+id.String())
	if _, err := pipe.Exec(ctx); err != nil {
		return Session{}, fmt.Errorf("end the session: %w", err)
	}
	return found, nil
}

// place is the position of a cursor: the end time and the name of the last session.
type place struct {
	End  int64  `json:"e"`
	Name string `json:"n"`
}

const listName = "console-sessions"

// List lists sessions. The error is cursor.ErrBad if the cursor does not belong to this list.
func (s *Store) List(ctx context.Context, f Filter) (Page, error) {
	if f.Size <= 0 {
		f.Size = 20
	}
	var from place
	bond := [2]string{ownerOf(f.Company), ""}
	if f.Asker != nil {
		bond[1] = f.Asker.Issuer + "|" + f.Asker.ClientID + "|" + f.Asker.Subject
	}
	if err := cursor.Decode(f.Cursor, listName, bond, &from); err != nil {
		return Page{}, err
	}
	names, last, err := s.names(ctx, f, from)
	if err != nil {
		return Page{}, fmt.Errorf("list sessions: %w", err)
	}
	var page Page
	if last != nil {
		page.Next = cursor.Encode(listName, bond, last)
	}
	page.Items, err = s.read(ctx, names, f.Asker)
	return page, err
}

// names returns the names of the sessions of one page, and the position of the last one. The
// position is nil at the end of the list.
func (s *Store) names(ctx context.Context, f Filter, from place) (names []string, last *place, err error) {
	key := allKey()
	if f.Company != nil {
		key = sessionsKey(f.Company.String())
	}
	top := "+inf"
	if f.Cursor != "" {
		top = strconv.FormatInt(from.End, 10)
	}
	// Sessions that end in the same millisecond as the last one may appear again. Skip them.
	found, err := s.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: key, ByScore: true, Rev: true, Start: top, Stop: "(" + strconv.FormatInt(s.now().UnixMilli(), 10), Count: int64(f.Size) + maxOfOwner,
	}).Result()
	if err != nil {
		return nil, nil, err
	}
	for _, z := range found {
		name, _ := z.Member.(string)
		if end := int64(z.Score); f.Cursor != "" && end == from.End && name >= from.Name {
			continue
		}
		if len(names) == f.Size {
			return names, last, nil
		}
		names, last = append(names, name), &place{End: int64(z.Score), Name: name}
	}
	return names, nil, nil
}

// read reads sessions. With an asker, it returns only the sessions of the asker. It omits
// sessions that have ended.
func (s *Store) read(ctx context.Context, names []string, asker *Asker) ([]Session, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := s.client.Pipeline()
	texts, ttls := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		id := name[strings.LastIndexByte(name, '/')+1:]
		texts[i], ttls[i] = pipe.Get(ctx, sessionKey(id)), pipe.PTTL(ctx, sessionKey(id))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	var found []Session
	for i, text := range texts {
		one, err := s.decode(text)
		if err != nil || asker != nil && !one.Asker.sameAs(asker) {
			continue
		}
		if one.IdleUntil = s.now().Add(ttls[i].Val()); one.IdleUntil.After(one.ExpiresAt) {
			one.IdleUntil = one.ExpiresAt
		}
		found = append(found, one)
	}
	return found, nil
}
