/* Parses the value of --archfs.
 *
 * A colon ends the archive only if a single slash follows it, because a mount point is an absolute
 * path. So the colons of https://host:8080/data.sqfs:/mnt need no escape. The last such colon
 * counts. A backslash takes the special meaning from a comma, a colon or a backslash.
 */
#define _GNU_SOURCE
#include "mounts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char out_of_memory[] = "out of memory";

/* Copies `text`, without escapes, up to the first comma. Returns the end of the copied text, and
 * in `separator` the offset in `item` of the colon before the mount point, or -1. */
static const char *copy_item(const char *text, char *item, ptrdiff_t *separator) {
    size_t length = 0;
    *separator = -1;
    for (; *text != '\0' && *text != ','; text++) {
        if (text[0] == '\\' && text[1] != '\0' && strchr(",:\\", text[1]) != NULL) {
            text++;
        } else if (text[0] == ':' && text[1] == '/' && text[2] != '/') {
            *separator = (ptrdiff_t)length;
        }
        item[length++] = *text;
    }
    item[length] = '\0';
    return text;
}

/* Checks the patterns of a mount point. */
static const char *check_patterns(struct mount *mount) {
    for (const char *at = mount->mount_point; (at = strchr(at, '%')) != NULL; at += 2) {
        if (at[1] == '\0' || strchr("jsu%", at[1]) == NULL) {
            return "the patterns of a mount point are %j, %s, %u and %%";
        }
        mount->is_per_step |= at[1] == 's';
    }
    return NULL;
}

static const char *add(struct mounts *mounts, char *item, ptrdiff_t separator) {
    if (item[0] == '\0') {
        return "an empty item; write ARCHIVE:MOUNTPOINT";
    }
    if (separator < 0) {
        return "no mount point; write ARCHIVE:MOUNTPOINT, with an absolute path as MOUNTPOINT";
    }
    if (separator == 0) {
        return "no archive; write ARCHIVE:MOUNTPOINT";
    }
    item[separator] = '\0';
    const char *mount_point = item + separator + 1;
    if (mount_point[1] == '\0') {
        return "the mount point is the root directory";
    }
    if (strlen(item) >= PATH_MAX || strlen(mount_point) >= PATH_MAX) {
        return "a path is too long";
    }
    if (mounts->count == MOUNTS_LIMIT) {
        return "more than 16 mounts";
    }
    for (size_t i = 0; i < mounts->count; i++) {
        if (strcmp(mounts->items[i].mount_point, mount_point) == 0) {
            return "the same mount point twice";
        }
    }
    struct mount *mount = &mounts->items[mounts->count++];
    *mount = (struct mount){.archive = strdup(item), .mount_point = strdup(mount_point)};
    if (mount->archive == NULL || mount->mount_point == NULL) {
        return out_of_memory;
    }
    return check_patterns(mount);
}

const char *mounts_parse(struct mounts *mounts, const char *text) {
    size_t length = text == NULL ? 0 : strnlen(text, MOUNTS_TEXT_LIMIT + 1);
    if (length == 0) {
        return "empty; write ARCHIVE:MOUNTPOINT";
    }
    if (length > MOUNTS_TEXT_LIMIT) {
        return "longer than 16384 bytes";
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
            return "contains a line break or another control character";
        }
    }
    char *item = malloc(length + 1);
    const char *wrong = item == NULL ? out_of_memory : NULL;
    while (wrong == NULL) {
        ptrdiff_t separator;
        text = copy_item(text, item, &separator);
        wrong = add(mounts, item, separator);
        if (*text == '\0') {
            break;
        }
        text++;
    }
    free(item);
    if (wrong != NULL) {
        mounts_clear(mounts);
    }
    return wrong;
}

/* Returns `pattern` with the names put in, or NULL if memory runs out. */
static char *expand(const char *pattern, const struct mounts_names *names) {
    char *expanded = NULL;
    size_t size;
    FILE *stream = open_memstream(&expanded, &size);
    if (stream == NULL) {
        return NULL;
    }
    for (; *pattern != '\0'; pattern++) {
        if (*pattern != '%') {
            fputc(*pattern, stream);
            continue;
        }
        pattern++;
        switch (*pattern) {
        case 'j': fputs(names->job, stream); break;
        case 's': fputs(names->step, stream); break;
        case 'u': fputs(names->user, stream); break;
        default: fputc('%', stream); break;
        }
    }
    if (fclose(stream) != 0) {
        free(expanded);
        return NULL;
    }
    return expanded;
}

const char *mounts_expand(struct mounts *mounts, const struct mounts_names *names) {
    for (size_t i = 0; i < mounts->count; i++) {
        char *expanded = expand(mounts->items[i].mount_point, names);
        if (expanded == NULL) {
            return out_of_memory;
        }
        free(mounts->items[i].mount_point);
        mounts->items[i].mount_point = expanded;
    }
    return NULL;
}

void mounts_clear(struct mounts *mounts) {
    for (size_t i = 0; i < mounts->count; i++) {
        free(mounts->items[i].archive);
        free(mounts->items[i].mount_point);
    }
    *mounts = (struct mounts){0};
}
