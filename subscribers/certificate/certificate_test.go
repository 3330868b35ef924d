package certificate_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"spendhook/internal/clientcert"
	"spendhook/internal/devca"
	"spendhook/internal/partition"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

func issue(t *testing.T, ca *devca.Authority, leaf devca.Leaf) certificate.Input {
	t.Helper()
	if leaf.Usage == 0 {
		leaf.Usage = x509.ExtKeyUsageClientAuth
	}
	pair, err := ca.Issue(leaf)
	noErr(t, err)
	return certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)}
}

func public(c *certificate.Certificate) *ecdsa.PublicKey {
	return c.TLS.PrivateKey.(crypto.Signer).Public().(*ecdsa.PublicKey)
}

func TestACertificateIsKeptAndReadWithoutItsKeyInClear(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := subscriberstest.ClientCertificate(t, b.Now())
	set, err := b.certificates.Set(t.Context(), b.Company, in)
	noErr(t, err)
	read, err := b.certificates.Get(t.Context(), b.Company)
	noErr(t, err)
	if diff := cmp.Diff(set, read, cmpopts.IgnoreFields(certificate.Certificate{}, "TLS")); diff != "" {
		t.Errorf("(-set +read):\n%s", diff)
	}
	block, _ := pem.Decode([]byte(in.Chain))
	leaf, err := x509.ParseCertificate(block.Bytes)
	noErr(t, err)
	if read.Subject != "CN=client" || read.Issuer != "CN=test" || read.Thumbprint != clientcert.Thumbprint(leaf) || !read.NotAfter.Equal(leaf.NotAfter) {
		t.Errorf("read %+v", read)
	}
	if !public(read).Equal(public(set)) {
		t.Error("another key was read")
	}
	raw := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), layout.CertificateField).Val()
	if body := strings.Split(in.PrivateKey, "\n")[1]; raw == "" || strings.Contains(raw, body[:20]) {
		t.Errorf("stored in clear: %s", raw)
	}
}

func TestRegistryReturnsThePresentCertificate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Create(t, "https://example.com/")
	other := subscriberstest.On(b.Redis, subscribers.StoreOptions{})
	other.Create(t, "https://example.com/")
	copies := b.Registry()
	thumbprint := func(company uuid.UUID) string {
		matched, err := copies.Current(t.Context(), company)
		noErr(t, err)
		if matched[0].Certificate == nil {
			return ""
		}
		return matched[0].Certificate.Thumbprint
	}
	if got := thumbprint(b.Company); got != "" {
		t.Errorf("a certificate from nowhere: %s", got)
	}
	for range 2 {
		c, err := b.certificates.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
		noErr(t, err)
		if got := thumbprint(b.Company); got != c.Thumbprint {
			t.Errorf("%q, want the one that was set", got)
		}
	}
	if got := thumbprint(other.Company); got != "" {
		t.Errorf("another company has it too")
	}
	noErr(t, b.certificates.Remove(t.Context(), b.Company))
	if got := thumbprint(b.Company); got != "" {
		t.Errorf("%q after it was removed", got)
	}
	wantErr(t, b.certificates.Remove(t.Context(), b.Company), certificate.ErrNotFound)
	_, err := b.certificates.Get(t.Context(), b.Company)
	wantErr(t, err, certificate.ErrNotFound)
}

// A certificate may be set before the company's first subscriber, and stays after its last.
func TestCertificateIsKeptWithoutSubscribers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.certificates.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	s := b.Create(t, "https://example.com/")
	noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	_, err = b.certificates.Get(t.Context(), b.Company)
	noErr(t, err)
	items, n, err := b.Registry().List(t.Context(), registry.Filter{Company: &b.Company})
	noErr(t, err)
	if len(items) != 0 || n != 0 {
		t.Errorf("listed %d of %d", len(items), n)
	}
}

func TestBadCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := b.Now()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	noErr(t, err)
	leaf := devca.Leaf{Name: "client", NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Minute)}
	good, other := issue(t, ca, leaf), issue(t, ca, leaf)
	with := func(chain, key string) certificate.Input {
		return certificate.Input{Chain: chain, PrivateKey: key}
	}
	late, early, server := leaf, leaf, leaf
	late.NotAfter, early.NotBefore, server.Usage = now, now.Add(time.Second), x509.ExtKeyUsageServerAuth
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	noErr(t, err)

	for name, test := range map[string]struct {
		in   certificate.Input
		want string
	}{
		"nothing":           {with("", ""), "certificateChain REQUIRED, privateKey REQUIRED"},
		"no PEM":            {with("hello", "world"), "certificateChain INVALID"},
		"the key as chain":  {with(good.PrivateKey, good.PrivateKey), "certificateChain INVALID"},
		"the chain as key":  {with(good.Chain, good.Chain), "privateKey INVALID"},
		"key in the chain":  {with(good.Chain+good.PrivateKey, good.PrivateKey), "certificateChain INVALID"},
		"text in the chain": {with(good.Chain+"hello", good.PrivateKey), "certificateChain INVALID"},
		"no PEM as key":     {with(good.Chain, "world"), "privateKey INVALID"},
		"another's key":     {with(good.Chain, other.PrivateKey), "privateKey INVALID"},
		"no chain":          {with(good.Chain+other.Chain, good.PrivateKey), "certificateChain INVALID"},
		"expired":           {issue(t, ca, late), "certificateChain EXPIRED"},
		"not yet valid":     {issue(t, ca, early), "certificateChain NOT_YET_VALID"},
		"for servers":       {issue(t, ca, server), "certificateChain INVALID"},
		"encrypted":         {with(good.Chain, pemOf("ENCRYPTED PRIVATE KEY", []byte{1})), "privateKey INVALID"},
		"a damaged key":     {with(good.Chain, pemOf("PRIVATE KEY", []byte{1})), "privateKey INVALID"},
		"a weak key":        {with(selfSigned(t, &weak.PublicKey, weak, now), pkcs8(t, weak)), "certificateChain INVALID"},
		"a large key":       {with(selfSigned(t, largeKey(), weak, now), pkcs8(t, weak)), "privateKey INVALID, certificateChain INVALID"},
		"a damaged link":    {with(good.Chain+pemOf("CERTIFICATE", []byte{1}), good.PrivateKey), "certificateChain INVALID"},
		"a very long chain": {with(good.Chain+strings.Repeat("\n", 33<<10), good.PrivateKey), "certificateChain TOO_LONG"},
		"a very long key":   {with(good.Chain, good.PrivateKey+strings.Repeat("\n", 17<<10)), "privateKey TOO_LONG"},
		"too many links":    {with(strings.Repeat(good.Chain, 11), good.PrivateKey), "certificateChain TOO_MANY"},
	} {
		_, err := b.certificates.Set(t.Context(), b.Company, test.in)
		if got := subscriberstest.Codes(t, err); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		if lines := strings.Split(test.in.PrivateKey, "\n"); len(lines) > 1 && len(lines[1]) > 20 && strings.Contains(err.Error(), lines[1][:20]) {
			t.Errorf("%s: the error repeats the key", name)
		}
	}
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
	block, _ := pem.Decode([]byte(good.PrivateKey))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	noErr(t, err)
	sec1, err := x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	noErr(t, err)
	if _, err := b.certificates.Set(t.Context(), b.Company, with(good.Chain, pemOf("EC PRIVATE KEY", sec1))); err != nil {
		t.Errorf("a key in the form of SEC 1: %v", err)
	}
	withCA := with(good.Chain+string(ca.PEM()), good.PrivateKey)
	if _, err := b.certificates.Set(t.Context(), b.Company, withCA); err != nil {
		t.Errorf("a chain with its authority: %v", err)
	}
}

// largeKey is of 4097 bits. A private key would take seconds to make.
func largeKey() *rsa.PublicKey {
	return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 4096, 1), E: 65537}
}

// A signature by a key of 100,000 bits takes a second to verify, and a chain has nine.
func TestNoSignatureIsVerifiedByALargeKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	good, other := subscriberstest.ClientCertificate(t, b.Now()), subscriberstest.ClientCertificate(t, b.Now())
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	noErr(t, err)
	good.Chain += other.Chain + selfSigned(t, largeKey(), weak, b.Now())
	_, err = b.certificates.Set(t.Context(), b.Company, good)
	if want := "certificateChain: certificate 3 of the chain has an RSA key of 4097 bits, must be of at most 4096"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func selfSigned(t *testing.T, public *rsa.PublicKey, key *rsa.PrivateKey, now time.Time) string {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Minute)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, key)
	noErr(t, err)
	return pemOf("CERTIFICATE", der)
}

func pkcs8(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	noErr(t, err)
	return pemOf("PRIVATE KEY", der)
}

// A subscriber's own certificate is used instead of the company's, and is removed with the subscriber.
func TestASubscribersOwnCertificate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.Create(t, "https://example.com/1")
	b.Advance(time.Second) // the oldest comes first
	second := b.Create(t, "https://example.com/2")
	own := b.certificates.Of(first.UUID)
	_, err := own.Get(t.Context(), b.Company)
	wantErr(t, err, certificate.ErrNotFound)
	copies := b.Registry()
	want := func(what string, thumbprints ...string) {
		t.Helper()
		matched, err := copies.Current(t.Context(), b.Company)
		noErr(t, err)
		for i, s := range matched {
			if s.Certificate == nil || s.Certificate.Locked != nil || s.Certificate.Thumbprint != thumbprints[i] {
				t.Errorf("%s: subscriber %d has %+v", what, i, s.Certificate)
			}
		}
	}
	company, err := b.certificates.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	want("the company's", company.Thumbprint, company.Thumbprint)
	set, err := own.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	want("one's own", set.Thumbprint, company.Thumbprint)
	if read, err := own.Get(t.Context(), b.Company); err != nil || read.Thumbprint != set.Thumbprint || !public(read).Equal(public(set)) {
		t.Errorf("read %+v, %v", read, err)
	}
	ending, err := b.certificates.ExpiringBefore(t.Context(), set.NotAfter.Add(time.Second))
	noErr(t, err)
	if len(ending) != 2 || !slices.ContainsFunc(ending, func(e certificate.Expiring) bool { return e.Company == b.Company && e.Subscriber == first.UUID }) {
		t.Errorf("ending: %+v", ending)
	}

	// Its key opens at its own place only.
	key := layout.CompanyKey(b.Company)
	raw := b.Redis.HGet(t.Context(), key, layout.CertificateFieldOf(first.UUID)).Val()
	for _, field := range []string{layout.CertificateField, layout.CertificateFieldOf(second.UUID)} {
		var mend func()
		if b.Redis.HExists(t.Context(), key, field).Val() {
			mend = subscriberstest.Overwrite(t, b.Redis, b.Company, field, raw)
		} else {
			noErr(t, b.Redis.HSet(t.Context(), key, field, raw).Err())
			mend = func() { noErr(t, b.Redis.HDel(t.Context(), key, field).Err()) }
		}
		subscriber, ok := layout.ParseCertificateField(field)
		if c, err := b.certificates.Of(subscriber).Get(t.Context(), b.Company); !ok || err != nil || c.Locked == nil {
			t.Errorf("%s: %+v, %v", field, c, err)
		}
		mend()
	}

	noErr(t, own.Remove(t.Context(), b.Company))
	wantErr(t, own.Remove(t.Context(), b.Company), certificate.ErrNotFound)
	want("after its removal", company.Thumbprint, company.Thumbprint)
	_, err = own.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	noErr(t, b.Store.Delete(t.Context(), b.Company, first.UUID))
	want("after the removal of its subscriber", company.Thumbprint)
	ending, err = b.certificates.ExpiringBefore(t.Context(), set.NotAfter.Add(time.Second))
	noErr(t, err)
	if len(ending) != 1 || b.Redis.HExists(t.Context(), key, layout.CertificateFieldOf(first.UUID)).Val() {
		t.Errorf("it is left: %+v", ending)
	}
	_, err = own.Set(t.Context(), b.Company, subscriberstest.ClientCertificate(t, b.Now()))
	wantErr(t, err, certificate.ErrNoSubscriber)
}

// Every replica reads all certificates of a company with each change of its subscribers.
func TestCertificatesOfSubscribersAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := subscriberstest.ClientCertificate(t, b.Now())
	var last *certificate.Store
	for i := range 101 {
		last = b.certificates.Of(b.Create(t, fmt.Sprintf("https://example.com/%d", i)).UUID)
		_, err := last.Set(t.Context(), b.Company, in)
		if i < 100 {
			noErr(t, err)
			_, err = last.Set(t.Context(), b.Company, in) // a new one replaces it
			noErr(t, err)
		} else {
			wantErr(t, err, certificate.ErrTooMany)
		}
	}
	_, err := last.Get(t.Context(), b.Company)
	wantErr(t, err, certificate.ErrNotFound)
	_, err = b.certificates.Set(t.Context(), b.Company, in)
	noErr(t, err)
}

func TestExpiringCertificatesAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := b.Now()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	noErr(t, err)
	companies := make([]uuid.UUID, 4)
	for i := range companies {
		companies[i] = uuid.New()
		end := now.Add(time.Duration(i+1) * 24 * time.Hour)
		_, err := b.certificates.Set(t.Context(), companies[i], issue(t, ca, devca.Leaf{Name: "c", NotBefore: now.Add(-time.Hour), NotAfter: end}))
		noErr(t, err)
	}
	noErr(t, b.certificates.Remove(t.Context(), companies[0]))
	some, err := b.certificates.ExpiringBefore(t.Context(), now.Add(3*24*time.Hour))
	noErr(t, err)
	if len(some) != 1 || some[0].Company != companies[1] || !some[0].NotAfter.Equal(now.Add(2*24*time.Hour)) {
		t.Errorf("%+v", some)
	}
}

// A company whose certificates have all expired does not hide those of others.
func TestACompanyHidesNoExpiringCertificateOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := subscriberstest.ClientCertificate(t, b.Now())
	for i := range 100 {
		_, err := b.certificates.Of(b.Create(t, fmt.Sprintf("https://example.com/%d", i)).UUID).Set(t.Context(), b.Company, in)
		noErr(t, err)
	}
	other := uuid.New()
	for partition.Of(other) != partition.Of(b.Company) {
		other = uuid.New()
	}
	b.Advance(time.Second)
	last, err := b.certificates.Set(t.Context(), other, subscriberstest.ClientCertificate(t, b.Now()))
	noErr(t, err)
	ending, err := b.certificates.ExpiringBefore(t.Context(), last.NotAfter.Add(time.Second))
	noErr(t, err)
	if len(ending) != 6 || ending[5].Company != other || ending[4].Company != b.Company {
		t.Errorf("%d: %+v", len(ending), ending)
	}
}

// Above the high-water mark there are no more certificates, but one that ends is replaced.
func TestNoNewCertificatesWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var full atomic.Bool
	certificates := certificate.New(certificate.Options{
		Client: b.Redis, Keyring: sealtest.Keyring(), Now: b.Now,
		Full: func(company uuid.UUID) bool { return company == b.Company && full.Load() },
	})
	in := subscriberstest.ClientCertificate(t, b.Now())
	of := certificates.Of(b.Create(t, "https://example.com/1").UUID)
	_, err := of.Set(t.Context(), b.Company, in)
	noErr(t, err)
	full.Store(true)
	_, err = certificates.Of(b.Create(t, "https://example.com/2").UUID).Set(t.Context(), b.Company, in)
	wantErr(t, err, certificate.ErrFull)
	_, err = certificates.Set(t.Context(), b.Company, in)
	wantErr(t, err, certificate.ErrFull)
	_, err = of.Set(t.Context(), b.Company, in)
	noErr(t, err)
	_, err = certificates.Set(t.Context(), uuid.New(), in)
	noErr(t, err)
}
