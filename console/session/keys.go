package session

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"

	"github.com/google/uuid"
)

// All keys are in one slot, because there are few sessions, and one list shows the sessions of all
// companies.
const keyPrefix = "sh:{console}:"

// newSecret returns the secret of a link's address or of a cookie: 32 random bytes. Redis has
// only a digest of the secret, so its data opens no session.
func newSecret() string {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

// idOf returns the id of the link or session that a secret belongs to.
func idOf(secret string) uuid.UUID {
	sum := sha256.Sum256([]byte(secret))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8, RFC 9562
	return id
}

// linkKey is the key of an unused link. Type: string, a Grant as JSON. TTL: LinkLife.
func linkKey(id string) string { return keyPrefix + "link:" + id }

// takenKey is the key of the session that used up a link. Type: string, the id of the session. TTL:
// LinkLife.
func takenKey(link string) string { return keyPrefix + "taken:" + link }

// loginKey is the key of a finished login. Type: string, random. TTL: twice the time that a login may take.
func loginKey(id string) string { return keyPrefix + "login:" + id }

// linksKey is the key of an owner's links. Type: sorted set, ids by their end in unix ms. TTL:
// MaxLifetime after the last link was added.
func linksKey(owner string) string { return keyPrefix + "links:" + owner }

// sessionKey is the key of a session. Type: string, a Session as JSON. TTL: IdleTime after the
// last use.
func sessionKey(id string) string { return keyPrefix + "session:" + id }

// sessionsKey is the key of an owner's sessions. Type and TTL: as for linksKey.
func sessionsKey(owner string) string { return keyPrefix + "sessions:" + owner }

// allKey is the key of the sessions of all owners. Type: sorted set, "<owner>/<id>" by their end in
// unix ms. TTL: as for sessionsKey.
func allKey() string { return keyPrefix + "sessions" }

// noCompany is the owner of sessions without a company.
const noCompany = "-"

func ownerOf(company *uuid.UUID) string {
	if company == nil {
		return noCompany
	}
	return company.String()
}
