# `make wheel` and `make deb`; included by the Makefile.  The packages carry the time of the last
# commit, and have the same bytes on every machine with the same compilers.

SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
PYTHON ?= python3

wheel: $(BUILD)/$(CLIP_SO)
	@rm -rf $(BUILD)/wheel && mkdir -p $(BUILD)/wheel/stripped
	$(Q)$(CROSS_COMPILE)strip --strip-unneeded -o $(BUILD)/wheel/stripped/$(CLIP_SO) $<
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(PYTHON) formats/runtime/wheel.py \
		$(BUILD)/wheel/stripped/$(CLIP_SO) $(VERSION) $(BUILD)/wheel
	@rm -r $(BUILD)/wheel/stripped

# Debian's tools run in a copy of cmd/package/debian and take the sources from this tree.  Objects
# compiled with Debian's flags go into a separate build directory.
DEB := $(BUILD)/deb
# The maintainer named in the packages: `make deb MAINTAINER="Name <name@host>"`.
deb: export FM_MAINTAINER = $(MAINTAINER)
DEB_BUILD ?= $(DEB)/build
deb:
	@sh tests/deps.sh install deb
	@rm -rf $(DEB)/fm-suite $(DEB)/*.deb && mkdir -p $(DEB)/fm-suite && cp -r cmd/package/debian $(DEB)/fm-suite
	@[ -n "$$FM_MAINTAINER" ] || echo 'make deb: no MAINTAINER="Name <name@host>" was given; these packages name a placeholder' >&2
	@awk '/^Maintainer:/ && ENVIRON["FM_MAINTAINER"] { $$0 = "Maintainer: " ENVIRON["FM_MAINTAINER"] } 1' \
		cmd/package/debian/control >$(DEB)/fm-suite/debian/control
	@printf 'fm-suite ($(VERSION)) UNRELEASED; urgency=medium\n\n  * First version.\n\n -- %s  %s\n' \
		"$$(sed -n 's/^Maintainer: //p' $(DEB)/fm-suite/debian/control)" \
		"$$(date -u -R -d @$(SOURCE_DATE_EPOCH))" >$(DEB)/fm-suite/debian/changelog
	$(Q)cd $(DEB)/fm-suite && unset MAKEFLAGS MFLAGS MAKELEVEL && DEB_BUILD_OPTIONS="noautodbgsym $$DEB_BUILD_OPTIONS" \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) FM_SOURCE="$(CURDIR)" FM_BUILD=$(DEB_BUILD) CUDA=$(CUDA) \
		dpkg-buildpackage --build=binary --no-sign --jobs-force=$$(nproc) >../build.log 2>&1 || { tail -n 40 ../build.log >&2; exit 1; }
	@ls $(DEB)/*.deb

packages-check:
	@bash tests/judge/packages.sh
