# `make wheel` and `make deb`: what others install; a part of the Makefile.  Both have the time of the
# last commit, and the same bytes whoever builds them with the same compilers.

SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
PYTHON ?= python3

wheel: $(BUILD)/$(CLIP_SO)
	@rm -rf $(BUILD)/wheel && mkdir -p $(BUILD)/wheel/stripped
	$(Q)strip --strip-unneeded -o $(BUILD)/wheel/stripped/$(CLIP_SO) $<
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(PYTHON) formats/runtime/wheel.py \
		$(BUILD)/wheel/stripped/$(CLIP_SO) $(VERSION) $(BUILD)/wheel
	@rm -r $(BUILD)/wheel/stripped
