package main

import (
	"regexp"
	"testing"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// The vector that Standard Webhooks publishes with its libraries.
func TestSignVector(t *testing.T) {
	t.Parallel()
	command(t, `{"test": 2432232314}`, "sign", "--secret-file", secretFile(t, testSecret),
		"--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330").
		want(t, exitOK, "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\n", "")
}

func TestVerify(t *testing.T) {
	t.Parallel()
	signed := command(t, "body", "sign", "--secret-file", secretFile(t, testSecret), "--id", "evt_1")
	signed.want(t, exitOK, "webhook-id: evt_1", "")
	value := func(name string) string {
		return regexp.MustCompile(name + `: (.*)\n`).FindStringSubmatch(signed.stdout)[1]
	}
	args := []string{
		"verify", "--secret-file", secretFile(t, testSecret), "--id", "evt_1",
		"--timestamp", value("webhook-timestamp"), "--signature", value("webhook-signature"),
	}
	command(t, "body", args...).want(t, exitOK, "verified", "")
	command(t, "body!", args...).want(t, exitFailure, "", "not verified")
}

// With an empty key anybody can sign, so no command takes one.
func TestShortKeysAreRefused(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "\n", "whsec_", "whsec_QQ==", "A", "whpk_"} {
		file := secretFile(t, key)
		for _, args := range [][]string{
			{"sign", "--secret-file", file, "--id", "evt_1"},
			{"verify", "--secret-file", file, "--id", "evt_1", "--timestamp", "1", "--signature", "v1,"},
			{"listen", "--addr", "127.0.0.1:0", "--secret-file", file},
		} {
			command(t, "body", args...).want(t, exitFailure, "", " is not wh")
		}
	}
}

func TestVerifyTolerance(t *testing.T) {
	t.Parallel()
	args := []string{
		"verify", "--secret-file", secretFile(t, testSecret), "--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330",
		"--signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
	}
	command(t, `{"test": 2432232314}`, args...).want(t, exitFailure, "", "too old")
	command(t, `{"test": 2432232314}`, append(args, "--tolerance", "0")...).want(t, exitOK, "verified", "")
}
