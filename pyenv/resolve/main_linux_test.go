package resolve

import (
	"os"
	"testing"

	"github.com/mcp-vdisk/mcp-vdisk/pyenv/pyenvtest"
	"github.com/mcp-vdisk/mcp-vdisk/sandboxrun"
)

func TestMain(m *testing.M) {
	sandboxrun.StageMain()
	os.Exit(pyenvtest.Main(m, 60707))
}
