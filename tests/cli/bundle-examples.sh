# The examples of fm-bundle(5), from the page: the commands print what it shows, except for the
# sizes of the manifest and of build.json, which contain versions and a measured loss.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
export TZ=UTC
ln -s "$GOLDEN" golden
sizes() { sed -E '/ (manifest|build)\.json$/s/ +[0-9]+ 1970/ SIZE 1970/'; }
take fm-bundle.5 | sed 's/^\$ //' >shown
take fm-bundle.5 | sed -n '/^\$ /{:more;p;/\\$/{n;bmore}}' | sed 's/^\$ //' >example.sh
bash -ev example.sh >said 2>&1
echo "status $?"
diff <(sizes <shown) <(sizes <said)
