package pyenv

import (
	"os"
	"strings"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/usertest"
)

// testUID runs the tests when root started the test binary.
const testUID = 60712

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	if playRole() || playClerk() {
		return
	}
	os.Exit(usertest.Main(m, usertest.Options{UID: testUID, Env: pipVariables(), Before: mountSmall}))
}

// pipVariables are what of the environment says where pip finds packages.
func pipVariables() []string {
	names := []string{"CI", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PIP_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			names = append(names, name)
		}
	}
	return names
}
