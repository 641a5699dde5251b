/*
 * What libsquashfs reads from an image, as facts: the oracle for mutants of images.
 *
 * Reads paths from stdin, one a line (answer() has the rest), and answers each with lines "KEY VALUE" and a last line ".". The
 * keys are those of facts.rs. A key that could not be read has the value "!" and libsquashfs' number of
 * the error; an image that cannot be opened has the key "open". The library does all the decoding; this
 * program only walks the tree.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <sqfs/block.h>
#include <sqfs/compressor.h>
#include <sqfs/data_reader.h>
#include <sqfs/dir.h>
#include <sqfs/error.h>
#include <sqfs/id_table.h>
#include <sqfs/inode.h>
#include <sqfs/io.h>
#include <sqfs/meta_reader.h>
#include <sqfs/super.h>
#include <sqfs/xattr.h>
#include <sqfs/xattr_reader.h>

/* As in facts.rs. */
enum { CHUNK = 4096, INODES_MAX = 1 << 12, CHUNKS_MAX = 512, TAIL_CHUNKS = 16 };

/* Seconds of the processor and bytes that one image may take. */
enum { SECONDS = 10 };
static const rlim_t MEMORY = 1 << 30;

typedef unsigned long long u64;

struct image {
	sqfs_super_t super;
	sqfs_file_t *file;
	sqfs_compressor_t *compressor;
	sqfs_meta_reader_t *metadata;
	sqfs_data_reader_t *data;
	sqfs_id_table_t *ids;
	sqfs_xattr_reader_t *xattrs;
	int data_error, ids_error, xattrs_error;
	/* The block that was decoded last, of the file that is being read. */
	sqfs_u8 *block;
	size_t block_len;
	u64 loaded;
	u64 queue[INODES_MAX];
	size_t queued;
};

static sqfs_u32 crc_table[256];

static void crc_start(void)
{
	for (sqfs_u32 byte = 0; byte < 256; byte++) {
		sqfs_u32 value = byte;
		for (int bit = 0; bit < 8; bit++)
			value = value & 1 ? 0xedb88320u ^ (value >> 1) : value >> 1;
		crc_table[byte] = value;
	}
}

static sqfs_u32 crc(const sqfs_u8 *bytes, size_t len)
{
	sqfs_u32 value = ~0u;
	while (len--)
		value = crc_table[(value ^ *bytes++) & 0xff] ^ (value >> 8);
	return ~value;
}

static void hex(const sqfs_u8 *bytes, size_t len)
{
	while (len--)
		printf("%02x", *bytes++);
}

/*
 * After a failure a reader has parts of the damaged block in its buffer and treats them as its previous
 * block, so it is created again after each failure.
 */
static int open_metadata(struct image *image)
{
	sqfs_destroy(image->metadata);
	/* The limits are those of the image: Linux has no narrower ones either. */
	image->metadata = sqfs_meta_reader_create(image->file, image->compressor, sizeof(image->super),
						  image->super.bytes_used);
	return image->metadata ? 0 : SQFS_ERROR_ALLOC;
}

static int open_xattrs(struct image *image)
{
	sqfs_destroy(image->xattrs);
	image->xattrs = sqfs_xattr_reader_create(0);
	if (!image->xattrs)
		return SQFS_ERROR_ALLOC;
	if (image->super.xattr_id_table_start == ~0ull)
		return 0;
	return sqfs_xattr_reader_load(image->xattrs, &image->super, image->file, image->compressor);
}

static int open_data(struct image *image)
{
	sqfs_destroy(image->data);
	image->data = sqfs_data_reader_create(image->file, image->super.block_size, image->compressor, 0);
	if (!image->data)
		return SQFS_ERROR_ALLOC;
	return sqfs_data_reader_load_fragment_table(image->data, &image->super);
}

static void later(struct image *image, u64 ref)
{
	for (size_t at = 0; at < image->queued; at++)
		if (image->queue[at] == ref)
			return;
	if (image->queued < INODES_MAX)
		image->queue[image->queued++] = ref;
}

static void owner(struct image *image, u64 ref, const char *what, sqfs_u16 index)
{
	sqfs_u32 id = 0;
	int error = image->ids_error;
	if (!error)
		error = sqfs_id_table_index_to_id(image->ids, index, &id);
	if (error)
		printf("%llx.%s !%d\n", ref, what, error);
	else
		printf("%llx.%s %u\n", ref, what, id);
}

static void listing(struct image *image, u64 ref, sqfs_inode_generic_t *inode)
{
	sqfs_readdir_state_t state;
	int error = sqfs_readdir_state_init(&state, &image->super, inode);
	unsigned count = 0;
	while (!error) {
		sqfs_dir_entry_t *entry = NULL;
		sqfs_u64 child = 0;
		error = sqfs_meta_reader_readdir(image->metadata, &state, &entry, NULL, &child);
		if (error)
			break;
		printf("%llx.n", ref);
		hex(entry->name, (size_t)entry->size + 1);
		printf(":%llx:%u \n", (u64)child, entry->type);
		sqfs_free(entry);
		count++;
		later(image, child);
	}
	if (error > 0)
		printf("%llx.end %u\n", ref, count);
	else
		printf("%llx.end !%d\n", ref, error);
	if (error < 0)
		open_metadata(image);
}

/*
 * Block by block, as sqfs_data_reader_read decodes the block before the one that is asked for, too, and
 * fails where only that one is damaged.
 */
static int load(struct image *image, sqfs_inode_generic_t *inode, u64 block)
{
	if (image->block && image->loaded == block)
		return 0;
	sqfs_free(image->block);
	image->block = NULL;
	image->block_len = 0;
	/* What lies in blocks needs no table of fragments. */
	bool whole = block < sqfs_inode_get_file_block_count(inode);
	int error = image->data && whole ? 0 : image->data_error;
	if (error)
		return error;
	if (whole)
		error = sqfs_data_reader_get_block(image->data, inode, block, &image->block_len,
						   &image->block);
	else
		error = sqfs_data_reader_get_fragment(image->data, inode, &image->block_len, &image->block);
	image->loaded = block;
	if (error)
		image->data_error = open_data(image);
	return error;
}

static void chunk(struct image *image, u64 ref, sqfs_inode_generic_t *inode, u64 nth, u64 size)
{
	u64 offset = nth * CHUNK, within = offset % image->super.block_size;
	size_t want = size - offset < CHUNK ? size - offset : CHUNK;
	int error = load(image, inode, offset / image->super.block_size);
	if (error)
		printf("%llx.c%llx !%d\n", ref, nth, error);
	else if (!image->block || within + want > image->block_len)
		printf("%llx.c%llx !short\n", ref, nth);
	else
		printf("%llx.c%llx %08x\n", ref, nth, crc(image->block + within, want));
}

static void contents(struct image *image, u64 ref, sqfs_inode_generic_t *inode)
{
	sqfs_u64 size = 0;
	sqfs_inode_get_file_size(inode, &size);
	printf("%llx.size %llu\n", ref, (u64)size);
	if (size >> 62)
		return;
	u64 chunks = (size + CHUNK - 1) / CHUNK;
	for (u64 nth = 0; nth < chunks; nth++) {
		if (nth >= CHUNKS_MAX && nth + TAIL_CHUNKS < chunks)
			nth = chunks - TAIL_CHUNKS;
		chunk(image, ref, inode, nth, size);
	}
	sqfs_free(image->block);
	image->block = NULL;
}

static void attributes(struct image *image, u64 ref, sqfs_inode_generic_t *inode)
{
	sqfs_u32 index = 0xffffffff, count = 0;
	sqfs_xattr_id_t description;
	sqfs_inode_get_xattr_index(inode, &index);
	int error = 0;
	if (index != 0xffffffff && image->super.xattr_id_table_start != ~0ull) {
		error = image->xattrs_error;
		if (!error)
			error = sqfs_xattr_reader_get_desc(image->xattrs, index, &description);
		if (!error)
			error = sqfs_xattr_reader_seek_kv(image->xattrs, &description);
		for (; !error && count < description.count; count++) {
			sqfs_xattr_entry_t *key = NULL;
			sqfs_xattr_value_t *value = NULL;
			error = sqfs_xattr_reader_read_key(image->xattrs, &key);
			if (error)
				break;
			error = sqfs_xattr_reader_read_value(image->xattrs, key, &value);
			if (!error) {
				printf("%llx.x", ref);
				/* Its size counts the name without the prefix, which stands in front of it. */
				const char *prefix = sqfs_get_xattr_prefix(key->type & SQFS_XATTR_PREFIX_MASK);
				hex(key->key, strlen(prefix) + key->size);
				printf(" %08x\n", crc(value->value, value->size));
			}
			sqfs_free(key);
			sqfs_free(value);
		}
	}
	if (error) {
		printf("%llx.xend !%d\n", ref, error);
		image->xattrs_error = open_xattrs(image);
	} else {
		printf("%llx.xend %u\n", ref, count);
	}
}

static void inode(struct image *image, u64 ref)
{
	sqfs_inode_generic_t *inode = NULL;
	/* libsquashfs wants the offset in the file here. */
	sqfs_u64 start = ref >> 16;
	int error = sqfs_meta_reader_read_inode(image->metadata, &image->super, start, ref & 0xffff, &inode);
	if (error) {
		printf("%llx.kind !%d\n", ref, error);
		open_metadata(image);
		return;
	}
	unsigned kind = inode->base.type > 7 ? inode->base.type - 7 : inode->base.type;
	bool extended = inode->base.type > 7;
	sqfs_u32 nlink = 1;
	printf("%llx.kind %u\n%llx.mode %o\n", ref, kind, ref, inode->base.mode & 07777);
	printf("%llx.mtime %u\n", ref, inode->base.mod_time);
	owner(image, ref, "uid", inode->base.uid_idx);
	owner(image, ref, "gid", inode->base.gid_idx);
	switch (kind) {
	case SQFS_INODE_DIR:
		nlink = extended ? inode->data.dir_ext.nlink : inode->data.dir.nlink;
		printf("%llx.size %u\n", ref, extended ? inode->data.dir_ext.size : inode->data.dir.size);
		listing(image, ref, inode);
		break;
	case SQFS_INODE_FILE:
		nlink = extended ? inode->data.file_ext.nlink : 1;
		contents(image, ref, inode);
		break;
	case SQFS_INODE_SLINK:
		nlink = extended ? inode->data.slink_ext.nlink : inode->data.slink.nlink;
		printf("%llx.target ", ref);
		hex((const sqfs_u8 *)inode->extra,
		    extended ? inode->data.slink_ext.target_size : inode->data.slink.target_size);
		printf("\n");
		break;
	case SQFS_INODE_BDEV:
	case SQFS_INODE_CDEV:
		nlink = extended ? inode->data.dev_ext.nlink : inode->data.dev.nlink;
		printf("%llx.device %u\n", ref, extended ? inode->data.dev_ext.devno : inode->data.dev.devno);
		break;
	default:
		nlink = extended ? inode->data.ipc_ext.nlink : inode->data.ipc.nlink;
	}
	printf("%llx.nlink %u\n", ref, nlink);
	attributes(image, ref, inode);
	sqfs_free(inode);
}

/* libsquashfs comes without LZO, so it is given a decoder: liblzo2, which no header is needed for. */
extern int lzo1x_decompress_safe(const sqfs_u8 *in, unsigned long size, sqfs_u8 *out, unsigned long *have,
				 void *memory);

static sqfs_s32 lzo_block(sqfs_compressor_t *self, const sqfs_u8 *in, sqfs_u32 size, sqfs_u8 *out,
			  sqfs_u32 room)
{
	unsigned long have = room;
	(void)self;
	return lzo1x_decompress_safe(in, size, out, &have, NULL) ? SQFS_ERROR_COMPRESSOR : (sqfs_s32)have;
}

static void lzo_destroy(sqfs_object_t *self)
{
	free(self);
}

static sqfs_object_t *lzo_copy(const sqfs_object_t *self)
{
	sqfs_object_t *copy = malloc(sizeof(sqfs_compressor_t));
	return copy ? memcpy(copy, self, sizeof(sqfs_compressor_t)) : NULL;
}

static int lzo_create(sqfs_compressor_t **out)
{
	static const sqfs_compressor_t lzo = { .base = { lzo_destroy, lzo_copy }, .do_block = lzo_block };
	*out = (sqfs_compressor_t *)lzo_copy(&lzo.base);
	return *out ? 0 : SQFS_ERROR_ALLOC;
}

static int open_image(struct image *image, const char *path)
{
	sqfs_compressor_config_t config;
	image->file = sqfs_open_file(path, SQFS_FILE_OPEN_READ_ONLY);
	if (!image->file)
		return SQFS_ERROR_IO;
	int error = sqfs_super_read(&image->super, image->file);
	if (error)
		return error;
	sqfs_compressor_config_init(&config, image->super.compression_id, image->super.block_size,
				    SQFS_COMP_FLAG_UNCOMPRESS);
	error = image->super.compression_id == SQFS_COMP_LZO ? lzo_create(&image->compressor) :
							       sqfs_compressor_create(&config, &image->compressor);
	if (error)
		return error;
	/* Linux does not look at these, and the tables are there. */
	image->super.flags &= ~(SQFS_FLAG_NO_XATTRS | SQFS_FLAG_NO_FRAGMENTS | SQFS_FLAG_ALWAYS_FRAGMENTS);
	image->ids = sqfs_id_table_create(0);
	if (!image->ids || open_metadata(image))
		return SQFS_ERROR_ALLOC;
	image->ids_error = sqfs_id_table_read(image->ids, image->file, &image->super, image->compressor);
	image->xattrs_error = open_xattrs(image);
	image->data_error = open_data(image);
	if (!image->xattrs || !image->data)
		return SQFS_ERROR_ALLOC;
	return 0;
}

/* Answers for the image at the path; behind a tab stand objects that are not to be looked at. */
static void answer(char *path)
{
	static struct image image;
	char *skip = strchr(path, '\t');
	if (skip)
		*skip++ = 0;
	memset(&image, 0, sizeof(image));
	int error = open_image(&image, path);
	if (error) {
		printf("open !%d\n", error);
	} else {
		printf("open \nroot %llx\n", (u64)image.super.root_inode_ref);
		later(&image, image.super.root_inode_ref);
		for (size_t at = 0; at < image.queued; at++) {
			char name[32];
			snprintf(name, sizeof(name), ",%llx,", image.queue[at]);
			if (skip && strstr(skip, name))
				continue;
			/* If this program crashes, its reader knows at which inode. */
			printf("at %llx\n", image.queue[at]);
			fflush(stdout);
			inode(&image, image.queue[at]);
		}
	}
	void *parts[] = { image.data, image.xattrs, image.ids, image.metadata, image.compressor, image.file };
	for (size_t at = 0; at < sizeof(parts) / sizeof(parts[0]); at++)
		if (parts[at])
			sqfs_destroy(parts[at]);
}

int main(void)
{
	static char line[4096];
	struct rlimit limit = { MEMORY, MEMORY };
	setrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = limit.rlim_max = 0;
	setrlimit(RLIMIT_CORE, &limit);
	crc_start();
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		struct itimerval limited = { .it_value = { .tv_sec = SECONDS } }, none = { 0 };
		setitimer(ITIMER_PROF, &limited, NULL);
		answer(line);
		setitimer(ITIMER_PROF, &none, NULL);
		printf(".\n");
		fflush(stdout);
	}
	return 0;
}
