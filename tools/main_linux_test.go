package tools

import (
	"os"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun/usertest"
)

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	os.Exit(usertest.Main(m, usertest.Options{UID: 60702, Update: true}))
}
