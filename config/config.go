// Package config reads the daemon's settings from defaults, a YAML file, the environment and flags.
// It reports all problems of the settings in one error. Only package main of the daemon imports it.
// The other packages get settings in their Options.
package config

import (
	"net/netip"
	"reflect"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/secret"
)

// Config holds every setting. The key of a setting is the yaml tags of its fields, joined by dots.
// The tag default has the default value, range the minimum and maximum of a number, enum the allowed
// texts. testdata/good/full.yml explains each setting. Sizes are in bytes.
type Config struct {
	Listen        string        `yaml:"listen" default:"127.0.0.1:8080"`
	AdminListen   string        `yaml:"admin_listen" default:"127.0.0.1:9090"`
	AdminPublic   bool          `yaml:"admin_public"`
	AdminWeb      string        `yaml:"admin_web_config_file"`
	AdminProfiles bool          `yaml:"admin_profiles" default:"true"`
	PublicURL     string        `yaml:"public_url"`
	DataDir       string        `yaml:"data_dir" default:"./spendhook-data"`
	Redis         Redis         `yaml:"redis"`
	Dev           bool          `yaml:"dev"`
	ShutdownGrace time.Duration `yaml:"shutdown_grace" default:"30s" range:"1s..10m"`
	Storage       Storage       `yaml:"storage"`
	Log           Log           `yaml:"log"`
	Auth          auth          `yaml:"auth"`
	Events        events        `yaml:"events"`
	History       history       `yaml:"history"`
	Operations    operations    `yaml:"operations"`
	Canary        canary        `yaml:"canary"`
	Subscribers   subscribers   `yaml:"subscribers"`
	SMTP          smtpServer    `yaml:"smtp"`
	Delivery      delivery      `yaml:"delivery"`
	Egress        egressRules   `yaml:"egress"`
	Encryption    Encryption    `yaml:"encryption"`
	Limits        Limits        `yaml:"limits"`
	HTTP          httpLimits    `yaml:"http"`
	Audit         audit         `yaml:"audit"`
	Metrics       metrics       `yaml:"metrics"`
	TLS           tlsFiles      `yaml:"tls"`
	Console       console       `yaml:"console"`
}

// Redis configures the connection: the URL, or a file with the URL, the CA of the server's
// certificate, and a client certificate. Memory is the memory of Redis in bytes; 0 means its
// maxmemory, or half of this machine's memory for an embedded Redis. HighWater is the share of the
// memory that new events may fill.
type Redis struct {
	URL       secret.Text `yaml:"url" default:"embedded"`
	URLFile   string      `yaml:"url_file"`
	CAFile    string      `yaml:"ca_file"`
	CertFile  string      `yaml:"cert_file"`
	KeyFile   string      `yaml:"key_file"`
	Memory    int         `yaml:"memory" range:"0..1000000000000000"`
	HighWater float64     `yaml:"high_water" default:"0.85" range:"0.1..0.95"`
	FullSync  bool        `yaml:"full_sync" default:"true"` // of an embedded Redis
}

// Storage configures the connection to the spend database, with files as in Redis. An empty
// URL means SQLite in the data directory. MaxConns 0 means the default of the database.
type Storage struct {
	URL      secret.Text `yaml:"url"`
	URLFile  string      `yaml:"url_file"`
	CAFile   string      `yaml:"ca_file"`
	CertFile string      `yaml:"cert_file"`
	KeyFile  string      `yaml:"key_file"`
	MaxConns int         `yaml:"max_conns" range:"0..1000"`
	FullSync bool        `yaml:"full_sync" default:"true"` // of SQLite
}

// Log configures the level and the format of the log.
type Log struct {
	Level  string `yaml:"level" default:"info" enum:"debug,info,warn,error"`
	Format string `yaml:"format" default:"auto" enum:"auto,json,text,color"`
}

// auth configures the access tokens that the daemon issues and accepts.
type auth struct {
	Builtin bool            `yaml:"builtin" default:"true"`
	Issuers []trustedIssuer `yaml:"issuers"`
}

// trustedIssuer is another issuer whose tokens are accepted.
type trustedIssuer struct {
	Issuer       string   `yaml:"issuer"`
	JWKSURL      string   `yaml:"jwks_url"`
	Audience     string   `yaml:"audience"`
	Scopes       []string `yaml:"scopes"`
	ScopeClaim   string   `yaml:"scope_claim"`
	CompanyClaim string   `yaml:"company_claim"`
}

// events configures the retention of events, and the event types besides the built-in ones.
type events struct {
	Retention       time.Duration `yaml:"retention" default:"7d" range:"1m..90d"`
	KeepDelivered   time.Duration `yaml:"keep_delivered" default:"72h" range:"1s..90d"`
	Catalogue       []string      `yaml:"catalogue"`
	StrictCatalogue bool          `yaml:"strict_catalogue"`
}

// history says whether settled events are also kept in SQL, and for how long. Without it they are kept in Redis alone.
type history struct {
	Enabled   bool          `yaml:"enabled"`
	Retention time.Duration `yaml:"retention" default:"400d" range:"1d..3650d"`

	Companies []companyHistory `yaml:"companies"`
}

// companyHistory is a company whose events are kept in the history for a shorter time than others.
type companyHistory struct {
	Company uuid.UUID `yaml:"company"`
	Days    int       `yaml:"days"`
}

// OfCompanies returns how long the history keeps the events of companies with a time of their own. The settings must be
// valid.
func (h history) OfCompanies() map[uuid.UUID]time.Duration {
	of := make(map[uuid.UUID]time.Duration, len(h.Companies))
	for _, c := range h.Companies {
		of[c.Company] = days(c.Days)
	}
	return of
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// operations names the company whose subscribers also receive the operational events of all
// other companies; uuid.Nil means none.
type operations struct {
	Company uuid.UUID `yaml:"company"`
}

// canary names the company of the canary, whose events prove that deliveries arrive; uuid.Nil means none.
type canary struct {
	Company uuid.UUID `yaml:"company"`
}

// subscribers limits the subscribers of a company. Challenge says which of them get no deliveries until their receiver
// has answered a challenge: none, those that are created or moved from now on, or all.
type subscribers struct {
	Challenge     string        `yaml:"challenge" default:"off" enum:"off,new,all"`
	MaxPerCompany int           `yaml:"max_per_company" default:"100" range:"1..10000"`
	SecretOverlap time.Duration `yaml:"secret_overlap" default:"24h" range:"1s..30d"`
}

// smtpServer is the server that takes mail to contacts of subscribers, with files as in Redis. No mail is sent without a Host,
// and there is no authentication without a Username.
type smtpServer struct {
	Host         string      `yaml:"host"`
	Port         int         `yaml:"port" default:"587" range:"1..65535"`
	TLS          string      `yaml:"tls" default:"starttls" enum:"starttls,tls,none"`
	CAFile       string      `yaml:"ca_file"`
	Username     string      `yaml:"username"`
	Password     secret.Text `yaml:"password"`
	PasswordFile string      `yaml:"password_file"`
	From         string      `yaml:"from"`
}

// delivery configures how events are sent. Schedule holds the waits between attempts; the first
// attempt has no wait.
type delivery struct {
	Schedule            []time.Duration `yaml:"schedule" default:"5s,5m,30m,2h,5h,10h,14h,20h,24h" range:"100ms..30d"`
	Jitter              float64         `yaml:"jitter" default:"0.2" range:"0..0.5"`
	ConnectTimeout      time.Duration   `yaml:"connect_timeout" default:"5s" range:"10ms..5m"`
	AttemptTimeout      time.Duration   `yaml:"attempt_timeout" default:"15s" range:"100ms..5m"`
	Concurrency         int             `yaml:"concurrency" default:"2048" range:"1..100000"`
	EndpointConcurrency int             `yaml:"endpoint_concurrency" default:"64" range:"1..100000"`
	HostConcurrency     int             `yaml:"host_concurrency" default:"256" range:"1..100000"`
	DeadRetention       time.Duration   `yaml:"dead_retention" default:"30d" range:"1h..365d"`
	FailingAfter        int             `yaml:"failing_after" default:"4" range:"1..1000"`
	DisableAfter        time.Duration   `yaml:"disable_after" default:"5d" range:"1m..365d"`
	SignEd25519         bool            `yaml:"sign_ed25519"`
}

// egressRules configures which internal addresses deliveries may call, the proxy for deliveries, and
// the addresses that are published to receivers; an empty ProxyURL means no proxy.
type egressRules struct {
	AllowCIDRs   []netip.Prefix  `yaml:"allow_cidrs"`
	ProxyURL     secret.Text     `yaml:"proxy_url"`
	ProxyURLFile string          `yaml:"proxy_url_file"`
	ProxyCAFile  string          `yaml:"proxy_ca_file"`
	Addresses    []egressAddress `yaml:"addresses"`
}

// Encryption has the keys that encrypt the secrets in Redis and in the database, each as text or as
// a file. Without a key, the daemon creates one in the data directory. The old keys only
// decrypt.
type Encryption struct {
	Key         secret.Text   `yaml:"key"`
	KeyFile     string        `yaml:"key_file"`
	OldKeys     []secret.Text `yaml:"old_keys"`
	OldKeyFiles []string      `yaml:"old_key_files"`
}

// Limits are the rates of requests, or of the items in them, per second, with their bursts,
// the pending events and unfinished jobs of a company, the contacts of a subscriber, the messages and the requests to
// confirm to the contacts of a company in an hour, the challenges to a host and of a company in an hour, and the
// subscribers of a company with a client certificate of their own. A rate of 0 means no limit.
type Limits struct {
	ClientRate     int `yaml:"client_rate" default:"1000" range:"0..1000000"`
	ClientBurst    int `yaml:"client_burst" default:"2000" range:"1..1000000"`
	CompanyRate    int `yaml:"company_rate" default:"2000" range:"0..1000000"`
	CompanyBurst   int `yaml:"company_burst" default:"4000" range:"1..1000000"`
	CompanyBacklog int `yaml:"company_backlog" default:"1000000" range:"1..1000000000"`
	UnfinishedJobs int `yaml:"unfinished_jobs" default:"100" range:"1..1000"`
	Contacts       int `yaml:"contacts" default:"5" range:"1..50"`
	ContactHour    int `yaml:"contact_messages_hour" default:"60" range:"2..10000"`
	ConfirmHour    int `yaml:"contact_confirmations_hour" default:"20" range:"2..1000"`
	HostHour       int `yaml:"host_challenges_hour" default:"10" range:"4..10000"`
	ChallengeHour  int `yaml:"company_challenges_hour" default:"30" range:"2..10000"`
	Certificates   int `yaml:"subscriber_certificates" default:"100" range:"1..1000"`
}

// audit bounds the age and the number of the entries of the audit log.
type audit struct {
	Retention  time.Duration `yaml:"retention" default:"400d" range:"1d..3660d"`
	MaxEntries int           `yaml:"max_entries" default:"1000000" range:"1000..100000000"`
}

// console configures access to the web console.
type console struct {
	// ClientCertificates says whether a browser needs a client certificate: required or
	// optional. With required, the request for a link needs a certificate too.
	ClientCertificates string       `yaml:"client_certificates" default:"optional" enum:"required,optional"`
	Login              consoleLogin `yaml:"login"`
}

// consoleLogin configures the OpenID provider at which users of the console sign in; an empty Issuer means none.
type consoleLogin struct {
	Issuer           string      `yaml:"issuer"`
	ClientID         string      `yaml:"client_id"`
	ClientSecret     secret.Text `yaml:"client_secret"`
	ClientSecretFile string      `yaml:"client_secret_file"`
	Scopes           []string    `yaml:"scopes" default:"profile,email"`
	GroupsClaim      string      `yaml:"groups_claim" default:"groups"`
	CompanyClaim     string      `yaml:"company_claim"`
	Roles            []loginRole `yaml:"roles"`
	// ClientCertificates says whether a user needs a client certificate for a role whose operations need one in the API:
	// required or optional.
	ClientCertificates string `yaml:"client_certificates" default:"required" enum:"required,optional"`
}

// loginRole gives the members of a group a role. A role of a company without a Company is for the companies in
// CompanyClaim.
type loginRole struct {
	Group   string    `yaml:"group"`
	Role    string    `yaml:"role"`
	Company uuid.UUID `yaml:"company"`
}

// metrics configures how many companies the backlog metric shows; 0 means none.
type metrics struct {
	TopCompanies int `yaml:"top_companies" default:"10" range:"0..100"`
}

// httpLimits bounds the connections and times of clients on a listener.
type httpLimits struct {
	MaxConnections           int           `yaml:"max_connections" default:"8192" range:"1..1000000"`
	MaxConnectionsPerAddress int           `yaml:"max_connections_per_address" default:"1024" range:"1..1000000"`
	HeaderTimeout            time.Duration `yaml:"header_timeout" default:"10s" range:"100ms..1m"`
	RequestTimeout           time.Duration `yaml:"request_timeout" default:"30s" range:"100ms..10m"`
	IdleTimeout              time.Duration `yaml:"idle_timeout" default:"2m" range:"1s..1h"`
}

// tlsFiles configures TLS and client certificates of the API. TLS ends at the daemon, at trusted
// proxies, or at both.
type tlsFiles struct {
	CertFile           string             `yaml:"cert_file"`
	KeyFile            string             `yaml:"key_file"`
	ClientCAFile       string             `yaml:"client_ca_file"`
	TrustedProxies     []netip.Prefix     `yaml:"trusted_proxies"`
	ProxyHeader        string             `yaml:"proxy_header" default:"client-cert" enum:"client-cert,xfcc"`
	ClientCertificates clientCertificates `yaml:"client_certificates"`
}

// clientCertificates says for each group of operations whether a client needs a
// certificate: required or optional.
type clientCertificates struct {
	Subscribers    string `yaml:"subscribers" default:"required" enum:"required,optional"`
	Reimbursements string `yaml:"reimbursements" default:"required" enum:"required,optional"`
	Events         string `yaml:"events" default:"optional" enum:"required,optional"`
	Deliveries     string `yaml:"deliveries" default:"optional" enum:"required,optional"`
	Cards          string `yaml:"cards" default:"optional" enum:"required,optional"`
	Locations      string `yaml:"locations" default:"optional" enum:"required,optional"`
	Billing        string `yaml:"billing" default:"optional" enum:"required,optional"`
	Audit          string `yaml:"audit" default:"optional" enum:"required,optional"`
	Clients        string `yaml:"clients" default:"optional" enum:"required,optional"`
}

// CertificateRequired reports for every group of operations, and for the console, whether a
// client needs a certificate. Without mutual TLS, which only dev allows, no group needs one.
func (c *Config) CertificateRequired() map[string]bool {
	mutual := c.TLS.ClientCAFile != "" || len(c.TLS.TrustedProxies) > 0
	groups := map[string]bool{"console": mutual && c.Console.ClientCertificates == "required"}
	for field, value := range reflect.ValueOf(c.TLS.ClientCertificates).Fields() {
		groups[field.Tag.Get("yaml")] = mutual && value.String() == "required"
	}
	return groups
}

// DefaultIssuer is the issuer of the daemon's tokens when public_url is not set.
const DefaultIssuer = "spendhook"
