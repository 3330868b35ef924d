package main

// keysCmd is about the keys that the daemon keeps.
type keysCmd struct {
	Reencrypt keysReencryptCmd `cmd:"" help:"Seal every stored secret under the current encryption key."`
}
